package crifields

import "strings"

// olderPage is docs/older-apis.md: a section for each API of the socket that is older than CRI v1, and for what iSulad
// has.
func olderPage(where func(test string) (string, error)) (string, error) {
	var b strings.Builder
	b.WriteString(`# The older APIs

Made by ` + "`go generate ./tools/crifields`" + `; do not edit.

The socket of CRI v1 serves older APIs at the same time, over the same pods: what one of them makes, the others list,
stop and remove. In the tables a call or field **works** as its interface says, as the tests after it show;
or a request that has it is **refused** with the error that is given; or it has **no meaning** here.

`)
	for _, section := range []func(*rows) error{pouchSection, earlySection, isuladSection} {
		if err := section(&rows{b: &b, where: where, count: map[string]int{}}); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
