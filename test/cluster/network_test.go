package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestPodsOfAllNodesReachEachOther has a pod on every node ask every other, by its address. Each pod sees the other's
// own address, as Kubernetes demands of a network: nothing on the way may put a node's in its place.
func TestPodsOfAllNodesReachEachOther(t *testing.T) {
	s := tell(t)
	s.apply(workload("DaemonSet", "each", "", server))
	s.rolledOut("daemonset/each")
	pods := s.pods("each")
	if len(pods) != nodeCount {
		t.Fatalf("%d pods, not one on each of %d nodes", len(pods), nodeCount)
	}
	for _, from := range pods {
		for _, to := range pods {
			if from.Metadata.Name == to.Metadata.Name {
				continue
			}
			got, err := s.sh(from.Metadata.Name, "timeout 10 wget -qO- http://"+to.Status.PodIP+":8080/clientip")
			if err != nil {
				t.Error(err)
			} else if address, _, _ := strings.Cut(got, ":"); address != from.Status.PodIP {
				t.Errorf("the pod on %s sees %s, not %s, which is the address of the pod on %s", to.Spec.NodeName, address,
					from.Status.PodIP, from.Spec.NodeName)
			}
		}
	}
}

// TestAServiceIsReachedByItsName has a client on each node find a Service by DNS and reach each of its pods, and the
// Service's node port answer on each node.
func TestAServiceIsReachedByItsName(t *testing.T) {
	s := tell(t)
	s.apply(workload("Deployment", "web", "replicas: 3", server) + service("web", "type: NodePort") +
		workload("DaemonSet", "client", "", server))
	s.rolledOut("deployment/web")
	s.rolledOut("daemonset/client")
	want := len(s.pods("web"))
	for _, client := range s.pods("client") {
		for _, name := range []string{"web", "web." + s.name + ".svc." + domain} {
			seen := map[string]bool{}
			claim := "a client on " + client.Spec.NodeName + " reaches every pod of the Service " + name
			s.eventually(time.Minute, claim, func() error {
				out, err := s.sh(client.Metadata.Name,
					"for i in 1 2 3 4 5 6 7 8; do timeout 10 wget -qO- http://"+name+"/hostname; echo; done")
				for _, host := range strings.Fields(out) {
					seen[host] = true
				}
				if err == nil && len(seen) != want {
					err = fmt.Errorf("it has reached %d of %d", len(seen), want)
				}
				return err
			})
		}
	}
	port := s.kubectl("", "get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	for _, m := range s.c.nodes {
		if _, err := s.c.get(t.Context(), m.address+":"+port, "/hostname"); err != nil {
			t.Errorf("the node port on %s: %v", m.name, err)
		}
	}
}

// TestPodsReachTheAPIServer has a pod use its service account, by the Service that every cluster has.
func TestPodsReachTheAPIServer(t *testing.T) {
	s := tell(t)
	s.apply(workload("DaemonSet", "client", "", server))
	s.rolledOut("daemonset/client")
	for _, client := range s.pods("client") {
		out, err := s.sh(client.Metadata.Name, "nslookup kubernetes.default.svc."+domain+" "+dnsService+
			" | grep -c 'Address.* "+firstService+"'; cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; "+
			"/agnhost connect --timeout=10s kubernetes.default:443 && echo connected")
		if want := "1\n" + s.name + "\nconnected"; err != nil || out != want {
			t.Errorf("on %s: %q, not %q (%v)", client.Spec.NodeName, out, want, err)
		}
	}
}
