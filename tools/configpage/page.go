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

berthd reads ` + "`" + config.DefaultPath + "`" + `, or the file of ` + "`--config`" + `, in TOML; then, over it,
the files of ` + "`" + config.DropIns + "`" + ` beside it, or of ` + "`--config-dir`" + `, whose names end with ` +
		"`.toml`" + `, in the order of their
names. A key of a later file stands in place of that of an earlier one, lists included; a table is added to. Without a
file the defaults hold, and a flag overrides its key. An unknown key, a wrong type or an impossible value is an error
that names file, line and key.

    berthd config default    # the default file: every key with what it does
    berthd config check      # says what is wrong with the files, and what of them cannot work on this node
    berthd config dump       # what the files and flags come to, and which file, flag or default each key comes from

A running berthd reads the files anew on SIGHUP, which ` + "`systemctl reload berthd`" + ` sends once the check has
found nothing. It takes the keys that have a yes under "reload" below; the others count from its next start on. Its log
says which these are. [What a reload means for pods](operations.md#reload).

This page is made from the default file.

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
