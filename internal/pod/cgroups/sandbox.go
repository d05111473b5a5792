package cgroups

import "berth/internal/pod/record"

// RenewSandbox makes an empty cgroup with a pod's ID in its name beside those of the pod's containers, for monitors
// that find pods by their cgroups, and makes it anew where it is there. A pod with an init process has that in such a
// cgroup, and one that named no parent has its ID in the name of its own cgroup: they need no other.
func (g *Driver) RenewSandbox(r *record.Sandbox) error {
	return g.sandbox(r, Tree.Renew)
}

// RemoveSandbox removes what RenewSandbox has made, if it has. It does not wait: nothing of Berth's is ever in it.
func (g *Driver) RemoveSandbox(r *record.Sandbox) error {
	return g.sandbox(r, Tree.Rmdir)
}

func (g *Driver) sandbox(r *record.Sandbox, act func(Tree, string) error) error {
	if r.ReaperPID != 0 || r.Config.CgroupParent == "" || r.Config.OwnCgroup {
		return nil
	}
	host, err := g.tree()
	if err != nil {
		return err
	}
	return act(host, g.SandboxDir(r.CgroupParent, r.ID))
}
