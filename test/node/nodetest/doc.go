// Package nodetest brings private nodes, their pods and their containers to tests: what it starts ends with the test,
// and what fails ends the test. BERTH_TEST_RUNTIME=containerd runs a suite against Debian's containerd instead,
// which checks the suite's claims themselves.
package nodetest
