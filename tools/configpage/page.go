package configpage

import (
	"fmt"
	"strings"

	"berth/internal/config"
)

// page is docs/configuration.md.
func page() string {
	var b strings.Builder
	b.WriteString(`# Configuration

berthd reads ` + "`" + config.DefaultPath + "`" + `, or the file of ` + "`--config`" + `, in TOML.
Then it reads the files in the directory
` + "`" + config.DropIns + "`" + ` beside that file, or in ` + "`--config-dir`" + `, whose
names end with ` + "`.toml`" + `, in the order of their names. A key in
a later file replaces the same key of an earlier file, also if it is a list; tables are merged. A flag overrides its
key. If a key is in no file, its default applies. An unknown key, a wrong type and an invalid value are errors, which
name the file, the line and the key.

    berthd config default      # print the default file, which explains every key
    berthd config check        # report errors in the files, and settings that cannot work on this node
    berthd config registries   # ask each registry and mirror that has a hosts.toml whether it answers
    berthd config dump         # print the resulting configuration, and from which file, flag or default each key comes

berthd reads the files again on SIGHUP. ` + "`systemctl reload berthd`" + ` first runs ` + "`berthd config check`" + `,
and sends SIGHUP if the check finds no errors. Keys with a yes in the column "reload" apply without a restart. The other
keys apply after the next restart; berthd's log lists them. [What a reload means for pods](operations.md#reload).

This page is made from the default file, ` + "`internal/config/default.toml`" + `.

## Top level

`)
	row := func(p config.Entry, key string) {
		flag := ""
		if p.Flag != "" {
			flag = "`--" + p.Flag + "`"
		}
		reload := ""
		if p.Reload {
			reload = "yes"
		}
		text := strings.ReplaceAll(p.Text, "|", `\|`)
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s | %s |\n", key, flag, p.Value, reload, text)
	}
	const head = "| key | flag | default | reload | |\n|---|---|---|---|---|\n"
	b.WriteString(head)
	for _, p := range config.Entries() {
		if p.Table == "" {
			row(p, p.Key[strings.LastIndex(p.Key, ".")+1:])
			continue
		}
		title := p.Table
		if strings.HasPrefix(title, "runtimes.") {
			title = "runtimes.NAME"
		}
		fmt.Fprintf(&b, "\n## [%s]\n\n", title)
		if p.Text != "" {
			b.WriteString(p.Text + "\n\n")
		}
		b.WriteString(head)
	}
	return b.String()
}
