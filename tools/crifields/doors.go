package crifields

import "strings"

// doorsPage is docs/doors.md: a section for each door beside that of CRI v1.
func doorsPage(where func(test string) (string, error)) (string, error) {
	var b strings.Builder
	b.WriteString(`# The other doors

Made by ` + "`go generate ./tools/crifields`" + `; do not edit.

The socket of CRI v1 answers other interfaces at the same time, over the same pods: what one door makes, each of them sees,
stops and removes. In the tables a call or field **works** as its interface says, as the tests after it show; or a request that
has it is **refused** with the error that is given; or it has **no meaning** here.

`)
	for _, section := range []func(*rows) error{pouchSection, earlySection, isuladSection} {
		if err := section(&rows{b: &b, where: where, count: map[string]int{}}); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
