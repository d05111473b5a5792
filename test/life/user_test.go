package life

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node/nodetest"
)

// CVE-2024-40635, and its like in the files of an image: a number that does not fit becomes another one,
// root's at best. Seen to fail with the library that other runtimes read these files with: each container runs as root,
// or in root's group.
func TestUsersOfAnImageAreNotGuessed(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "containerd runs them as somebody else")
	r, host := broken(t, n)
	for i, c := range []struct{ user, passwd, group, says string }{
		{user: "4294967296", says: `user "4294967296" is not a number from 0 to 2147483647`},
		{user: "4294967295", says: `user "4294967295" is not a number from 0 to 2147483647`},
		{user: "1000:4294967296", says: `group "4294967296" is not a number from 0 to 2147483647`},
		{user: "web", passwd: "web:x:4294967296:1000::/:/bin/sh\n",
			says: `/etc/passwd of the image, line 1: user "web" has the user ID "4294967296"`},
		{user: "web", passwd: "web:x:abc:1000::/:/bin/sh\n",
			says: `/etc/passwd of the image, line 1: user "web" has the user ID "abc"`},
		{user: "web", passwd: "web:x:1000:4294967296::/:/bin/sh\n",
			says: `/etc/passwd of the image, line 1: user "web" has the group ID "4294967296"`},
		{user: "web:staff", passwd: "web:x:1000:1000::/:/bin/sh\n", group: "staff:x:4294967296:\n",
			says: `/etc/group of the image, line 1: group "staff" has the group ID "4294967296"`},
		{user: "web", passwd: "web:x:1000:1000::/:/bin/sh\n", group: "a:x:5:\nstaff:x:abc:web\n",
			says: `/etc/group of the image, line 2: group "staff" has the group ID "abc"`},
	} {
		name := fmt.Sprintf("users:%d", i)
		push(t, r, name, image(t, registrytest.WithBusybox(), registrytest.User(c.user),
			registrytest.WithFiles(map[string]string{"etc/passwd": c.passwd, "etc/group": c.group})))
		if err := pull(t, n, host+"/"+name, nil); err != nil {
			t.Fatal(err)
		}
		// What a kubelet is told must not let it believe that somebody else than root is meant.
		status, err := n.Images.ImageStatus(nodetest.Context(t),
			&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: host + "/" + name}})
		if err != nil || strings.HasPrefix(c.user, "4294") && status.Image.Uid != nil {
			t.Errorf("%s: the image's user is told as %v, %v", c.user, status.GetImage().GetUid(), err)
		}
		_, err = nodetest.RunPod(t, n).TryCreate(func(config *cri.ContainerConfig) { config.Image.Image = host + "/" + name })
		if nodetest.WantCode(t, err, codes.InvalidArgument); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("user %s: error %v, want one that says %q", c.user, err, c.says)
		}
	}
}
