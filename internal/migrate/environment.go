package migrate

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// reaching are the variables in the environment of a runtime that say how it reaches registries. berthd reads the same
// ones, those of proxies in lower case too.
var reaching = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// berthDropIns is the directory of the administrator's drop-ins of berthd's unit.
const berthDropIns = administratorUnits + "/" + berthUnit + ".d"

// variable is a variable that a unit gives its process.
type variable struct {
	name, value string
	from        unitFile // the unit file that has it, or that names the file that has it
	file        string   // the file of EnvironmentFile=; "": none
	written     string   // as it is in the unit file, perhaps with quotes
}

// at is the file that has the variable.
func (v variable) at() string {
	if v.file != "" {
		return v.file
	}
	return v.from.path
}

// userInfo is a user with a password in the URL of a proxy.
var userInfo = regexp.MustCompile(`://[^/@\s]*:[^/@\s]*@`)

// public is a value without a password in it.
func public(value string) string { return userInfo.ReplaceAllString(value, "://USER:PASSWORD@") }

// Environment is what the unit of the other runtime says about how registries are reached.
type Environment struct {
	id        string
	variables []variable // sorted by name
	has       map[string]string
	others    []string // the administrator's drop-ins with further settings
}

// ReadEnvironment reads the unit files of the other runtime with that ID, and of berthd. root is where the machine's
// file system is; "" stands for /.
func ReadEnvironment(root, id string) *Environment {
	e := &Environment{id: id, has: map[string]string{}}
	for _, v := range environment(root, readUnit(root, berthUnit)) {
		e.has[v.name] = v.value
	}
	for _, unit := range services[id] {
		files := readUnit(root, unit)
		e.variables = append(e.variables, environment(root, files)...)
		for _, f := range files {
			made := strings.HasPrefix(f.path, administratorUnits) || strings.HasPrefix(f.path, "/run/")
			if made && f.name != unit && slices.ContainsFunc(f.keys, func(k unitKey) bool {
				return k.name != "Environment" && k.name != "EnvironmentFile" && (k.name != "LimitNOFILE" || id != "containerd")
			}) {
				e.others = append(e.others, f.path)
			}
		}
	}
	return e
}

// environment are the variables of reaching that unit files give a process, sorted by name. As in systemd, an empty
// assignment forgets those before it, and those of files come before those of the unit.
func environment(root string, files []unitFile) []variable {
	own, named := map[string]variable{}, map[string]variable{}
	for _, f := range files {
		for _, key := range f.keys {
			switch {
			case key.name == "Environment" && key.value == "":
				clear(own)
			case key.name == "Environment":
				for _, word := range words(key.value) {
					if name, value, ok := strings.Cut(unquoted(word), "="); ok {
						own[name] = variable{name: name, value: value, from: f, written: word}
					}
				}
			case key.name == "EnvironmentFile" && key.value == "":
				clear(named)
			case key.name == "EnvironmentFile":
				paths, _ := filepath.Glob(filepath.Join(root, strings.TrimPrefix(key.value, "-")))
				for _, path := range paths {
					data, err := os.ReadFile(path)
					if err != nil {
						continue // that of another user's dry run, or none
					}
					path = "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
					for _, k := range unitKeys(string(data)) {
						named[k.name] = variable{name: k.name, value: unquoted(k.value), from: f, file: path}
					}
				}
			}
		}
	}
	maps.Copy(own, named)
	var out []variable
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if slices.Contains(reaching, name) ||
			slices.Contains(reaching, strings.ToUpper(name)) && strings.HasSuffix(name, "_proxy") {
			out = append(out, own[name])
		}
	}
	return out
}

// words are the words of a value of a unit file, each with its quotes.
func words(value string) []string {
	var out []string
	var word strings.Builder
	var quote rune
	flush := func() {
		if word.Len() > 0 {
			out = append(out, word.String())
			word.Reset()
		}
	}
	for _, c := range value {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && (c == ' ' || c == '\t'):
			flush()
			continue
		}
		word.WriteRune(c)
	}
	flush()
	return out
}

// unquoted is a text without the quotes around it.
func unquoted(text string) string {
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return text
}

// missing are the variables that berthd does not have, or not with this value.
func (e *Environment) missing() []variable {
	return slices.DeleteFunc(slices.Clone(e.variables), func(v variable) bool {
		value, there := e.has[v.name]
		return there && value == v.value
	})
}

// Notes name each variable, and the drop-ins that have other settings.
func (e *Environment) Notes(p *Plan) {
	missing := e.missing()
	for _, v := range e.variables {
		at := v.at() + ": " + v.name + "=" + public(v.value)
		if slices.ContainsFunc(missing, func(m variable) bool { return m.name == v.name }) {
			p.left(at, "%s reaches registries with this variable, and %s does not have it: the commands below put it into "+
				"a drop-in of that", p.Runtime, berthUnit)
		} else {
			p.note(at, Needless, berthUnit+" has the same")
		}
	}
	for _, path := range e.others {
		p.left(path, "a drop-in of %s's unit: settings for Berth belong into %s or berth-keeper.service.d", p.Runtime,
			berthDropIns)
	}
}

// Commands give berthd the variables, by copies of drop-ins that have nothing else, and by one that names the others.
// No password is in a command.
func (e *Environment) Commands() []string {
	var copies, lines, secrets []string
	for _, v := range e.missing() {
		dropIn := filepath.Dir(v.from.name) != "."
		switch {
		case v.file != "":
			lines = append(lines, "EnvironmentFile=-"+v.file)
		case dropIn && !slices.ContainsFunc(v.from.keys, func(k unitKey) bool { return k.name != "Environment" }):
			to := filepath.Join(berthDropIns, "50-"+e.id+"-"+filepath.Base(v.from.path))
			copies = append(copies, "cp "+v.from.path+" "+to)
		default:
			if public(v.written) != v.written {
				secrets = append(secrets, v.from.path)
			}
			lines = append(lines, "Environment="+public(v.written))
		}
	}
	if len(copies)+len(lines) == 0 {
		return nil
	}
	out := append([]string{"mkdir -p " + berthDropIns}, unique(copies)...)
	if len(lines) > 0 {
		text := ""
		for _, line := range append([]string{"[Service]"}, unique(lines)...) {
			text += " '" + strings.ReplaceAll(line, "'", `'\''`) + "'"
		}
		line := fmt.Sprintf(`printf '%%s\n'%s >%s/50-%s.conf`, text, berthDropIns, e.id)
		if len(secrets) > 0 {
			line += "   # then the USER and PASSWORD that are in " + strings.Join(unique(secrets), ", ")
		}
		out = append(out, line)
	}
	return append(out, "systemctl daemon-reload")
}

// unique are texts without those that were there before.
func unique(list []string) []string {
	var out []string
	for _, text := range list {
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}
