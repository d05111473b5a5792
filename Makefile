# Builds, tests and installs Berth. `make help` lists what there is.

# What the build needs, and what the tests run, as packages of Debian.
BUILD_PACKAGES = gcc libc6-dev libseccomp-dev musl-tools pkg-config
TEST_PACKAGES  = busybox-static containernetworking-plugins criu crun e2fsprogs iproute2 jq nftables procps runc rpm secilc xfsprogs zstd
# What analyzes the C.
LINT_PACKAGES  = cppcheck
# What makes and runs a virtual machine.
VM_PACKAGES    = e2fsprogs mmdebstrap qemu-system-x86
# The same for one of another architecture, and what that has beside its own. It has no Go: tests are built outside.
VM_OTHER_PACKAGES = e2fsprogs mmdebstrap $(if $(filter arm64,$(OTHER_ARCH)),qemu-system-arm,qemu-system-x86) qemu-user-static
GUEST_PACKAGES    = busybox-static containernetworking-plugins gcc iproute2 libc6-dev nftables procps runc

# Empty: what Git says of the tree (packaging/version.sh).
VERSION   ?=
GO        ?= go
TAGS      = seccomp
GOBUILD   = $(GO) build -buildvcs=false -tags $(TAGS)

PREFIX     ?= /usr/local
bindir     = $(PREFIX)/bin
unitdir    = $(PREFIX)/lib/systemd/system
docdir     = $(PREFIX)/share/doc/berth
selinuxdir = $(PREFIX)/share/selinux/packages
sysconfdir ?= /etc

# Packages of tests that run at a time. Each may start daemons of its own. Many tests wait for something, so there are
# more than processors, and the package that takes longest is the first.
TEST_PARALLEL ?= 3
TEST_FIRST     = ./test/life
# Of each package, and only for a test that hangs: test/life took 14 minutes on two processors that ran the others too.
TEST_TIMEOUT  ?= 90m
# Not from Go's cache, which does not know of the programs that tests run.
TEST_FLAGS    ?= -count=1
FUZZ_SECONDS  ?= 60
FUZZ_GO_SECONDS ?=

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: build-deps ## the four programs, in bin/
	GO='$(GO)' packaging/build.sh bin '$(VERSION)'

.PHONY: demo
demo: build ## run the main job before your eyes (root)
	CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o bin/demo-web ./test/demo/web
	$(GOBUILD) -o bin/demo ./test/demo
	bin/demo -bin bin -web bin/demo-web -manifest test/demo/hello.yaml

# What `make unit` tests, and further flags of its go test. Left out are the tests of the keeper's client, which build a
# keeper with libseccomp before the first of them begins and need root all, and those of streams, which move so much
# that they take a minute with the race detector. -short leaves out single tests for the same reason. Many tests wait
# for something, so more packages than there are processors run at a time.
UNIT_WITHOUT  = $(addprefix berth/internal/,stream keeper/client)
UNIT_PACKAGES ?= $(filter-out $(UNIT_WITHOUT),$(shell $(GO) list ./cmd/... ./internal/... 2>/dev/null))
UNIT_FLAGS    ?=
UNIT_PARALLEL ?= 6

# A program with the race detector sleeps for a second at its end by default, for races that are still to be reported.
.PHONY: unit
unit: ## tests that need neither root nor packages, with the race detector where there is a C compiler
	@command -v $(GO) >/dev/null || { echo "Go is missing: version 1.26 or newer, from https://go.dev/dl/"; exit 1; }
	@[ "$$(id -u)" != 0 ] || echo "You are root, so the tests that need root, and packages, run too, and take longer."
	@race=-race; command -v "$${CC:-gcc}" >/dev/null || { race=; export CGO_ENABLED=0; \
		echo "There is no C compiler: the tests run without the race detector."; }; \
		set -x; GORACE="$${GORACE-atexit_sleep_ms=50}" $(GO) test $$race -short -p $(UNIT_PARALLEL) -timeout 10m $(UNIT_FLAGS) $(UNIT_PACKAGES)

# The architecture that this machine is not of.
OTHER_ARCH = $(if $(filter arm64,$(shell $(GO) env GOHOSTARCH)),amd64,arm64)

# What follows the tests. Empty: nothing, for whoever runs lint beside them (test/ci.sh).
LINT ?= lint

# Without go vet, which lint runs.
.PHONY: test
test: announce test-deps build ## all tests, which must leave the machine as it was, then lint (root)
	@packaging/packages.sh containerd skopeo # that test/migrate comes from, and fills a store of CRI-O with
	@packaging/packages.sh chromium # which test/dashboard opens the page of berth dashboard in
	@packaging/packages.sh mmdebstrap qemu-user-static # of the packages, and of programs of another architecture
	@packaging/cross.sh $(OTHER_ARCH) >/dev/null
	$(GOBUILD) -o bin/machine ./test/machine
	BERTH_CRIU=$$(packaging/criu.sh) BERTH_BIN=$(CURDIR)/bin bin/machine \
		$(GO) test -tags $(TAGS) -vet=off -p $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $(TEST_FIRST) ./...
	$(if $(LINT),$(MAKE) $(LINT))

.PHONY: announce
announce:
	@echo "make test runs all tests of this tree as root, with real namespaces, mounts, cgroups and network interfaces:"
	@echo "the packages' own, then suites on private nodes below $${TMPDIR:-/tmp} (test/life takes 10 minutes,"
	@echo "test/faults 5), a comparison of the machine with what it was before, and make lint. On two cores at rest"
	@echo "it takes about a quarter of an hour. Without root: make unit. One test: CONTRIBUTING.md."

# In this order: those that find most come first, and the last one runs programs that are built meanwhile.
CI = test fuzz fuzz-go-short conformance-short test-libcontainer vm-smoke vm-selinux kubelet-short

.PHONY: ci
ci: ## what a change has to pass (root): test, fuzzing, critest, two virtual machines, a kubelet
	@# Shorter rounds of fuzzing than by hand: all of it has 45 minutes on two processors.
	FUZZ_SECONDS=20 FUZZ_GO_SECONDS=$(or $(FUZZ_GO_SECONDS),2) test/ci.sh $(CI)

# Which tests of test/life run on nodes whose programs look for data races.
RACE_LIFE     ?= Exec|Attach|PortForward|Events|Stats|Restart|Pull|Pause
# Whose own tests run with the race detector as root, and those that do not: with it a program takes more memory than
# they allow.
RACE_SKIP     ?= ^TestHostileImagesAreBounded$$
RACE_PACKAGES ?= ./internal/image/... ./internal/keeper/... ./internal/network/... ./internal/pod/... ./internal/stream
RACE_BUILD     = CGO_ENABLED=1 $(GO) build -race -buildvcs=false

.PHONY: test-race
test-race: test-race-life ## RACE_PACKAGES with the race detector, and pods on nodes that are built with it (root)
	BERTH_CRIU=$$(packaging/criu.sh) $(GO) test -race -tags $(TAGS) -p $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) \
		-skip '$(RACE_SKIP)' $(TEST_FLAGS) $(RACE_PACKAGES)

# The daemon is linked statically, since it starts itself in places that hold nothing else. A program goes
# on after a race, and writes what it found to a file; the nodes' tests do not see it. So the files are looked
# for afterwards, whatever the tests say.
.PHONY: test-race-life
test-race-life: test-deps build
	rm -rf bin/race && mkdir -p bin/race
	cp bin/berth bin/berth-unpack bin/race/
	$(RACE_BUILD) -tags $(TAGS),nri_no_wasm,netgo,osusergo -ldflags '-linkmode=external -extldflags -static' \
		-o bin/race/ ./cmd/berthd
	$(RACE_BUILD) -tags $(TAGS),netgo,osusergo,embedprogram -o bin/race/ ./cmd/berth-keeper
	GORACE=log_path=$(CURDIR)/bin/race/report BERTH_BIN=$(CURDIR)/bin/race \
		$(GO) test -tags $(TAGS) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) \
		-run '$(RACE_LIFE)' ./test/life; failed=$$?; \
		if ls bin/race/report.* 2>/dev/null; then cat bin/race/report.*; \
			echo "berthd or berth-keeper has a data race"; exit 1; fi; exit $$failed

# Tests of test/life and of the keeper that take long and hardly depend on what sets a container up: registries, metrics,
# limits of streams, manifests, reloads, requests that are refused, shims, remote layers, and all but one of checkpoints,
# which libcontainer makes and restores in any case. Some set containers up in each way. `make test` runs all of them.
LIBCONTAINER_SKIP ?= ^(TestNoUserOfTheNodeReachesAFileOfAContainer|TestMutatedRequestsNeitherBreakNorLeak|TestMetrics.*|$\
	TestAHundredMegabytesPassThroughAnExecEachWay|TestThoseWhoDoNotReadShareOneLimitOfTheDisk|TestARegistry.*|$\
	TestWhoPausesLosesNothingOfWhatHasEnded|TestContainerd.*|TestTasksMetrics.*|TestNoRequestEndsTheNode|$\
	TestWhoDoesNotReadWhatItAttachedToIsCutOffAndTold|TestAThousandStreamsWithSlowReadersAmongThem|TestTheCommandLine.*|$\
	TestALogin.*|TestPrune.*|TestDiskSpace.*|TestWhatRunHas.*|TestAManifests.*|TestAnImage(RunsWith|CanBe|Keeps|IsNo).*|$\
	TestApply.*|TestABundle.*|TestDoctor.*|TestConflists.*|TestArchives.*|TestOneMirror.*|TestA?Reload.*|TestAWrongFile.*|$\
	Test.*Restore.*|TestATerminalAndInputSurvive.*|TestWhatCannotBeWritten.*|TestACheckpoint(That|In|Of|Without).*|$\
	TestAFullDisk|TestARemovalThatFailsHalfWay.*|TestDirectoriesOfAnEarlier.*|TestAGroupReaches.*|TestALogHasTheLimits.*|$\
	TestPodsHaveTheDefaults.*|TestAnnotationsDoNot.*|TestNothingThatOthersWrite.*|TestAPodsCgroupIsForMonitors|$\
	TestTheAudit.*|TestTheDefaultSeccomp.*|TestAFailingPodsStatus.*|TestASaveThatIsCutOff.*|TestADiskQuota.*|$\
	TestTheWatchdogIs.*|TestAPodsStartIsTold|TestTheDebugSocket.*|TestAPodOfNamespaces.*|TestARuntimeHandlerSwitches.*|$\
	TestAnImage(s|That).*|TestNoOutputOfAnImage.*|TestTwoNodes.*|TestAStatusKeeps.*|TestANodeWithCNI|TestThe2016.*|$\
	TestTheStreamingServer.*|TestAPodOfAnEarlier.*|TestDeclaredVolumes.*|TestClassesOfBlockIO.*|TestASocketThat.*|$\
	TestAContainerIsConfinedAsByRunc|TestTheHostsNullDeviceIsNotGivenAway|TestEveryRuntimeLivesTheSameLife|$\
	TestKeeperKilledLosesNoOutput|TestHundredMegabytes|TestTheSessionKeyringOf.*|Test(Client|Keeper)WithFewDescriptors|TestLimitsOfLogs.*|$\
	TestKeeperKilledWhileItTakesThingsBack|TestKeeperAndClientStoppedAtOnce|TestOneKeeperPerDirectory|$\
	Test.*(Shim|GVisor|Snapshotter|RemoteLayer|Artifact).*|TestMountsOfPodsStayOutOfTheNodes|$\
	TestAContainerThatHasEndedIsCounted|TestAPodsCheckpoint.*|TestFilesOfALayerThat.*|TestALayerThatDoes.*|$\
	TestLayersThatA.*|TestAPodStartsBeforeIts.*|TestAKilledBerthdLeavesNoSnapshots|TestADeletedContainerOf.*|TestAVariableKeepsBytes.*|TestACheckpointKeepsBytes.*|TestTheAgentOfASeccompProfile.*)$$

.PHONY: test-libcontainer
test-libcontainer: test-deps build ## the keeper, pods' lives and critest where no stage sets containers up (root)
	BERTH_SETUP=libcontainer BERTH_CRIU=$$(packaging/criu.sh) BERTH_BIN=$(CURDIR)/bin \
		$(GO) test -tags $(TAGS) -p $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) \
		-skip '$(LIBCONTAINER_SKIP)' ./internal/keeper/client ./test/life
	BERTH_BIN=$(CURDIR)/bin $(GO) run -tags $(TAGS) ./test/conformance -setup libcontainer -phases spdy

.PHONY: fuzz
fuzz: test-deps build ## send mutated requests to berthd for FUZZ_SECONDS (root)
	BERTH_FUZZ_SECONDS=$(FUZZ_SECONDS) BERTH_BIN=$(CURDIR)/bin $(GO) test -tags $(TAGS) -count 1 -timeout $(TEST_TIMEOUT) \
		-run '^TestMutatedRequestsNeitherBreakNorLeak$$' ./test/life

.PHONY: fuzz-go
fuzz-go: build-deps ## every Go fuzzer for FUZZ_GO_SECONDS each; by default all in 75 s, and building (root)
	GO=$(GO) FUZZ_GO_SECONDS=$(FUZZ_GO_SECONDS) test/fuzz.sh -tags $(TAGS)

.PHONY: fuzz-go-short
fuzz-go-short: build-deps ## the same, without programs that tell the fuzzer which code an input reaches (root)
	FUZZ_GO_BLIND=yes GO=$(GO) FUZZ_GO_SECONDS=$(FUZZ_GO_SECONDS) test/fuzz.sh -tags $(TAGS)

.PHONY: lint
lint: lint-deps ## gofmt, go vet, staticcheck, golangci-lint, analyzers of the C, govulncheck
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l); \
		if [ -n "$$unformatted" ]; then echo "gofmt these:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet -tags $(TAGS) ./...
	$(GO) tool staticcheck -tags $(TAGS) ./...
	@# Of a module of its own, since its dependencies would change versions of the product's. The first time it is built,
	@# which takes minutes.
	lint=$$($(GO) -C tools/lint tool -n golangci-lint) && "$$lint" run ./...
	packaging/lint-c.sh
	GO='$(GO)' packaging/vulncheck.sh

# All rows beside containerd 2; `make bench BENCH_FLAGS=` measures Berth alone, in less time.
BENCH_FLAGS ?= -containerd -cni -crowds 0,500,1000 -layer 2048 \
	-json bin/bench.json -svg bin/bench.svg -growth bin/bench-growth.svg

.PHONY: bench
bench: test-deps build ## measure Berth beside containerd 2, built once, over their sockets (root); BENCH_FLAGS are passed on
	$(if $(findstring -debian-containerd,$(BENCH_FLAGS)),@packaging/packages.sh containerd)
	BERTH_BIN=$(CURDIR)/bin $(GO) run -tags $(TAGS) ./test/bench $(BENCH_FLAGS)

# For example -for 8h, or -seed N -rounds 1 -run TestX.
FAULTS_FLAGS ?=

.PHONY: faults
faults: test-deps build ## kill, flood, fill and spoil for ten minutes, and count what is lost (root; FAULTS_FLAGS)
	$(GO) test -c -tags $(TAGS) -o bin/faults.test ./test/faults
	$(GOBUILD) -o bin/rounds ./test/faults/rounds
	BERTH_BIN=$(CURDIR)/bin bin/rounds $(FAULTS_FLAGS) bin/faults.test

.PHONY: bench-kernel
bench-kernel: test-deps ## what the kernel alone needs for the parts of a pod's life (root)
	@mkdir -p bin
	gcc -Wall -O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -o bin/bench-kernel test/bench/kernel/kernel.c
	bin/bench-kernel

.PHONY: bench-compare
bench-compare: test-deps build ## measure this tree and BASE=revision by turns (root; TURNS of ten pods)
	@test -n "$(BASE)" || { echo "say what to compare with: make bench-compare BASE=main"; exit 1; }
	BERTH_BIN=$(CURDIR)/bin test/bench/compare.sh "$(BASE)" "$(TURNS)"

# The first instance of the run "twice" is critest over SPDY, and the second over WebSocket. "rest" is what neither runs.
.PHONY: conformance conformance-short
conformance-short: CONFORMANCE_FLAGS = -phases twice,rest
conformance-short: conformance ## each spec over SPDY, and each over WebSocket, in less time
conformance: test-deps build ## critest against Berth (root); CONFORMANCE_FLAGS are passed on
	BERTH_BIN=$(CURDIR)/bin $(GO) run -tags $(TAGS) ./test/conformance $(CONFORMANCE_FLAGS)

# For example -focus Probing, -label-filter 'Feature: containsAny { UserNamespacesSupport }', -runtime containerd. In the
# virtual machine: make vm VM_FLAGS='-suites node-conformance', with -node-conformance-flags.
NODE_CONFORMANCE_FLAGS ?=

.PHONY: node-conformance node-conformance-smoke
node-conformance: test-deps build ## Kubernetes' suite of a node (root; builds it once; NODE_CONFORMANCE_FLAGS)
	BERTH_BIN=$(CURDIR)/bin $(GO) run -tags $(TAGS) ./test/nodeconformance $(NODE_CONFORMANCE_FLAGS)
node-conformance-smoke: test-deps build ## a few minutes of the same
	BERTH_BIN=$(CURDIR)/bin $(GO) run -tags $(TAGS) ./test/nodeconformance -smoke $(NODE_CONFORMANCE_FLAGS)

.PHONY: kubernetes
kubernetes: ## build Kubernetes' programs for kubelet, once
	$(GO) test -tags $(TAGS) -vet=off -count 1 ./test/kubelet -args -prepare

.PHONY: kubelet kubelet-short
kubelet-short: KUBELET_FLAGS = -run 'ANodeGoesFromContainerd|AKubeletsMetrics|BerthdIsKilled|TheKubeletIsRestarted|TheNameOfTheRuntime'
kubelet-short: kubelet ## a minute of the same
kubelet: test-deps build ## a real kubelet, built once, runs pods on Berth (root; KUBELET_FLAGS)
	@packaging/packages.sh dbus-daemon
	BERTH_KUBELET=1 BERTH_BIN=$(CURDIR)/bin $(GO) test -tags $(TAGS) -count 1 -parallel 8 -timeout 40m -v \
		$(KUBELET_FLAGS) ./test/kubelet

.PHONY: metrics
metrics: test-deps build ## a real Prometheus finds the series of the dashboard and the alerts (root; builds it once)
	@mkdir -p bin
	cd test/metrics/build && for program in prometheus promtool; do \
		$(GO) build -tags remove_all_sd -ldflags '-s -w' -o $(CURDIR)/bin/$$program \
			github.com/prometheus/prometheus/cmd/$$program || exit 1; done
	BERTH_PROMETHEUS=$(CURDIR)/bin BERTH_BIN=$(CURDIR)/bin $(GO) test -tags $(TAGS) -count 1 -v ./test/metrics

.PHONY: migrate
migrate: test-deps build ## a node goes from Debian's containerd, and from containerd 2, to Berth and back (root; builds it once)
	@packaging/packages.sh containerd
	BERTH_MIGRATE=1 BERTH_BIN=$(CURDIR)/bin $(GO) test -tags $(TAGS) -count 1 -v ./test/migrate

.PHONY: nri
nri: test-deps build ## the same NRI plugins on Berth and on containerd 2, compared (root; builds it once)
	BERTH_NRI_PEER=1 BERTH_BIN=$(CURDIR)/bin $(GO) test -tags $(TAGS) -count 1 -v ./test/nri

.PHONY: bench-nri
bench-nri: test-deps build ## what an NRI plugin costs the start of a pod, on Berth and on containerd 2 (root; builds it once)
	BERTH_NRI_PEER=1 BERTH_BIN=$(CURDIR)/bin $(GO) test -tags $(TAGS) -run '^$$' -bench . -benchtime 40x ./test/nri

# What the suites of other runtimes run.
PEER_PACKAGES = bats iproute2 jq procps

.PHONY: peer-suites
peer-suites: test-deps build ## the suites of containerd and CRI-O against Berth (root; built once); PEER_SUITES_FLAGS are passed on
	@packaging/packages.sh $(PEER_PACKAGES)
	BERTH_BIN=$(CURDIR)/bin $(GO) run -tags $(TAGS) ./test/peersuites $(PEER_SUITES_FLAGS)

# For example -keep, or -test.run TestX, or -network cni.
CLUSTER_FLAGS ?=

.PHONY: cluster
cluster: test-deps build ## a Kubernetes cluster of three nodes on Berth (root; builds Kubernetes once); CLUSTER_FLAGS are passed on
	$(GOBUILD) -o bin/machine ./test/machine
	$(GO) test -c -tags $(TAGS) -o bin/cluster.test ./test/cluster
	BERTH_CLUSTER=1 BERTH_BIN=$(CURDIR)/bin bin/machine bin/cluster.test -test.v -test.timeout 60m $(CLUSTER_FLAGS)

.PHONY: cluster-conformance
cluster-conformance: test-deps build ## the Conformance specs of Kubernetes' test/e2e against such a cluster (root; hours); CLUSTER_CONFORMANCE_FLAGS
	$(GOBUILD) -o bin/machine ./test/machine
	$(GO) test -c -tags $(TAGS) -o bin/cluster.test ./test/cluster
	BERTH_CLUSTER=1 BERTH_BIN=$(CURDIR)/bin bin/machine bin/cluster.test -conformance $(CLUSTER_CONFORMANCE_FLAGS)

.PHONY: vm vm-smoke vm-selinux vm-other
vm: build ## critest and all tests in a virtual machine with cgroup v2 and AppArmor (root; hours; VM_FLAGS, as -suites node-conformance)
	@packaging/packages.sh $(VM_PACKAGES)
	$(GO) run ./test/vm -packages "$(BUILD_PACKAGES) $(TEST_PACKAGES)" $(VM_FLAGS)
vm-smoke: build ## a few minutes of the same
	@packaging/packages.sh $(VM_PACKAGES)
	$(GO) run ./test/vm -packages "$(BUILD_PACKAGES) $(TEST_PACKAGES)" -suites smoke -limit 8m $(VM_FLAGS)
vm-selinux: build ## the same with SELinux in place of AppArmor, and SELinux's specs of critest
	@packaging/packages.sh $(VM_PACKAGES)
	$(GO) run ./test/vm -packages "$(BUILD_PACKAGES) $(TEST_PACKAGES)" -lsm selinux -suites selinux,critest \
		-critest-flags "-phases spdy -focus SELinux" -limit 10m $(VM_FLAGS)

vm-other: build ## vm-smoke on a machine of the other architecture: arm64, or amd64 where this one is arm64 (an hour the first time)
	@packaging/packages.sh $(VM_OTHER_PACKAGES)
	@packaging/cross.sh $(OTHER_ARCH) >/dev/null
	$(GO) run ./test/vm -arch $(OTHER_ARCH) -packages "$(GUEST_PACKAGES)" -suites smoke -patience 8 -limit 20m $(VM_FLAGS)

.PHONY: generate
generate: ## Go code of the .proto files
	@packaging/packages.sh protobuf-compiler libprotobuf-dev
	$(GO) generate ./api/...

.PHONY: reproduce
reproduce: build-deps ## the tree makes the same programs in another directory, with nothing in Go's cache
	BERTH_REPRODUCE=1 $(GO) test -tags $(TAGS) -count 1 -timeout $(TEST_TIMEOUT) \
		-run '^TestTheSameBytesFromAnotherDirectory$$' ./packaging

UNITS = berthd.service berthd.socket berth-keeper.service berth-device-plugin.service berth-apply.service

# The programs to install. Those in bin/ run while they are installed, and may be of another architecture.
BIN ?= bin

.PHONY: install
install: ## install what `make build` built, below PREFIX and DESTDIR
	@for program in berthd berth-keeper berth-unpack berth; do \
		test -x $(BIN)/$$program || { echo "$(BIN)/$$program is missing: make build comes first"; exit 1; }; done
	install -d $(DESTDIR)$(bindir) $(DESTDIR)$(unitdir) $(DESTDIR)$(docdir) $(DESTDIR)$(sysconfdir)/berth
	install -m 0755 $(BIN)/berthd $(BIN)/berth-keeper $(BIN)/berth-unpack $(BIN)/berth $(DESTDIR)$(bindir)/
	for unit in $(UNITS); do \
		sed -e 's|@bindir@|$(bindir)|g' -e 's|@docdir@|$(docdir)|g' packaging/systemd/$$unit.in \
			>$(DESTDIR)$(unitdir)/$$unit && chmod 0644 $(DESTDIR)$(unitdir)/$$unit || exit 1; done
	for slice in berth.slice berth-.slice; do \
		install -D -m 0644 packaging/systemd/slices-at-shutdown.conf \
			$(DESTDIR)$(unitdir)/$$slice.d/10-shutdown.conf || exit 1; done
	install -D -m 0644 packaging/selinux/berth.cil $(DESTDIR)$(selinuxdir)/berth.cil
	install -d -m 0700 $(DESTDIR)$(sysconfdir)/berth/manifests
	packaging/docs.sh $(DESTDIR)$(docdir)
	bin/berthd config default >$(DESTDIR)$(docdir)/config.toml
	@test -e $(DESTDIR)$(sysconfdir)/berth/config.toml || \
		install -m 0644 $(DESTDIR)$(docdir)/config.toml $(DESTDIR)$(sysconfdir)/berth/config.toml
	bin/berth device-plugin --default-config >$(DESTDIR)$(docdir)/device-plugin.toml
	@test -e $(DESTDIR)$(sysconfdir)/berth/device-plugin.toml || \
		install -m 0644 $(DESTDIR)$(docdir)/device-plugin.toml $(DESTDIR)$(sysconfdir)/berth/device-plugin.toml
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	for program in berth berthd; do \
		bin/$$program completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$program && \
		bin/$$program completion zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$program && \
		bin/$$program completion fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$program.fish || exit 1; done

# For example arm64 on amd64. Another architecture than the machine's takes Debian's cross compiler.
ARCH ?= $(shell $(GO) env GOHOSTARCH)

.PHONY: packages
packages: build ## deb, rpm and tarball with their checksums, in dist/ (ARCH=arm64 or amd64)
	rm -rf dist
	GO='$(GO)' VERSION='$(VERSION)' packaging/dist.sh $(ARCH)

.PHONY: release
release: build ## the source and the packages of both architectures of the tag at this commit, in dist/
	GO='$(GO)' VERSION='$(VERSION)' packaging/release.sh amd64 arm64

.PHONY: uninstall
uninstall: ## remove what `make install` installed, but for the configuration
	$(if $(DESTDIR),,semodule -X 200 -r berth 2>/dev/null || true)
	cd $(DESTDIR)$(bindir) && rm -f berthd berth-keeper berth-unpack berth
	rm -f $(addprefix $(DESTDIR)$(unitdir)/,$(UNITS)) $(DESTDIR)$(selinuxdir)/berth.cil
	rm -rf $(DESTDIR)$(docdir) $(DESTDIR)$(unitdir)/berth.slice.d $(DESTDIR)$(unitdir)/berth-.slice.d
	for program in berth berthd; do \
		rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$program \
			$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$program \
			$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$program.fish; done

.PHONY: clean
clean: ## remove bin/
	rm -rf bin internal/keeper/program/program_*.bin

.PHONY: build-deps test-deps lint-deps
build-deps:
	@command -v $(GO) >/dev/null || { echo "Go is missing: version 1.26 or newer, from https://go.dev/dl/"; exit 1; }
	@packaging/packages.sh $(BUILD_PACKAGES)
test-deps:
	@packaging/packages.sh $(BUILD_PACKAGES) $(TEST_PACKAGES)
lint-deps: build-deps
	@packaging/packages.sh $(LINT_PACKAGES)
