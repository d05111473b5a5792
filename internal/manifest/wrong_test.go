package manifest

import (
	"strings"
	"testing"
)

// TestAValueOfAnotherTypeIsNamedByItsPath. Seen to fail with the decoder's own errors: that of a quantity says neither
// which field it is nor which value it has, and the others have names of Go.
func TestAValueOfAnotherTypeIsNamedByItsPath(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: i\n"
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
	for _, c := range []struct{ document, want string }{
		{pod + "    resources: {limits: {cpu: abc}}\n",
			`spec.containers[0].resources.limits.cpu: "abc" is no quantity such as 500m or 64Mi`},
		{pod + "    resources: {requests: {memory: [1]}}\n",
			`spec.containers[0].resources.requests.memory: [1] is no quantity`},
		{pod + "    ports: [{containerPort: http}]\n",
			`spec.containers[0].ports[0].containerPort: "http" is not a whole number of 32 bits`},
		{pod + "    tty: 1\n", `spec.containers[0].tty: 1 is not true or false`},
		{pod + "    args: x\n", `spec.containers[0].args: "x" is not a list`},
		{pod + "    env: [{name: A, value: 5}]\n", `spec.containers[0].env[0].value: 5 is not a string`},
		{pod + "    securityContext: yes please\n", `spec.containers[0].securityContext: "yes please" is not an object`},
		{pod + "  volumes: [{name: v, emptyDir: {sizeLimit: much}}]\n", `emptyDir.sizeLimit: "much" is no quantity`},
		{secret + "data: {k: '!'}\n", "data.k: the value is not base64"},
		{secret + "data: {k: 1234}\n", "data.k: the value is not a text in base64"},
		{secret + "stringData: {k: 1234}\n", "stringData.k: the value is not a string"},
	} {
		_, err := decodePods(strings.NewReader(c.document), Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s\n%v, want %s", c.document, err, c.want)
		}
	}
}
