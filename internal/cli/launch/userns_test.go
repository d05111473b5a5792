package launch

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/jail"
	"berth/internal/manifest"
)

func TestPodsWithUserNamespacesShareNoIDs(t *testing.T) {
	var taken []*cri.IDMapping
	for i := range lastRange - firstRange + 1 {
		// a range of another client may begin anywhere
		first, err := chooseIDs(append(taken, &cri.IDMapping{HostId: firstRange*manifest.IDRange - 1, Length: 1}), i/2)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range taken {
			if other.HostId < first+manifest.IDRange && first < other.HostId+other.Length {
				t.Fatalf("%d is given twice", first)
			}
		}
		taken = append(taken, &cri.IDMapping{HostId: first, Length: manifest.IDRange})
		if i > 40 {
			break
		}
	}
	all := []*cri.IDMapping{{HostId: firstRange*manifest.IDRange + 1,
		Length: (lastRange - firstRange + 1) * manifest.IDRange}}
	if _, err := chooseIDs(all, 7); err == nil {
		t.Error("IDs were given that a pod has")
	}
}

// TestPodsHaveNoIDsOfConfinedChildren: a process of the pod could send signals to a child that reads an image. It was
// seen to fail where the first range was the children's.
func TestPodsHaveNoIDsOfConfinedChildren(t *testing.T) {
	for i := range lastRange - firstRange + 1 {
		first, err := chooseIDs(nil, i)
		if err != nil {
			t.Fatal(err)
		}
		if first < jail.FirstUID+jail.UIDCount && jail.FirstUID < first+manifest.IDRange {
			t.Fatalf("a pod gets the IDs from %#x on, and children those from %#x", first, uint32(jail.FirstUID))
		}
	}
}
