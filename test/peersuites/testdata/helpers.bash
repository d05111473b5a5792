#!/usr/bin/env bash
# The set-up of CRI-O's suite for a daemon that runs already, on the socket PEER_SOCKET. CRI-O's own helpers are read
# first; what is below is in place of theirs. A story that configures CRI-O, reads its log or runs its programs is
# skipped, and says so.

bats_require_minimum_version() { :; }

# shellcheck disable=SC1091
. crio_helpers.bash

IMAGES=(registry.k8s.io/pause:3.10.1 quay.io/crio/fedora-crio-ci:latest)
POD_IPV4_CIDR_START=$PEER_POD_PREFIX

# settings are the variables that configure CRI-O, with their values.
settings() {
	local name
	for name in $(compgen -v |
		grep -E '^(CONTAINER_|OVERRIDE_OPTIONS$|STORAGE_OPTIONS$|CRIO_BINARY|RUNTIME_TYPE$|PRIVILEGED_)'); do
		[[ $name == CONTAINER_EXITS_DIR || $name == CONTAINER_ATTACH_SOCKET_DIR ]] || echo "$name=${!name}"
	done
}
SETTINGS=$(settings)

function setup_test() {
	TESTDIR=$(mktemp -d)
	chmod 711 "$TESTDIR"
	HOOKSDIR=$TESTDIR/hooks
	HOOKSCHECK=$TESTDIR/hookscheck
	CRIO_SOCKET=$PEER_SOCKET
	CRIO_CONFIG_DIR=$TESTDIR/crio.conf.d
	CRIO_CONFIG=$TESTDIR/crio.conf
	CRIO_CUSTOM_CONFIG=$CRIO_CONFIG_DIR/00-crio-custom.conf
	CRIO_CNI_CONFIG=$TESTDIR/cni
	CRIO_LOG=$TESTDIR/crio.log
	mkdir "$HOOKSDIR" "$CRIO_CONFIG_DIR" "$CRIO_CNI_CONFIG"
	CRICTL_CONFIG_FILE=$TESTDIR/crictl.yaml
	touch "$CRICTL_CONFIG_FILE"
	crictl config --set pull-image-on-create=false --set disable-pull-on-run=true
	PATH=$PATH:$TESTDIR
}

function start_crio() {
	[ $# -eq 0 ] || skip "it configures CRI-O"
	[ -z "$(ls -A "$CRIO_CONFIG_DIR" "$HOOKSDIR" "$CRIO_CNI_CONFIG" | grep -v :)" ] || skip "it configures CRI-O"
	[ "$(settings)" == "$SETTINGS" ] || skip "it configures CRI-O"
	local image
	for image in "${IMAGES[@]}"; do
		crictl inspecti -q "$image" >/dev/null 2>&1 || crictl pull "$image"
	done
	check_images
}

function cleanup_test() {
	[ -n "$TESTDIR" ] || return 0
	crictl rmp -a -f
	cleanup_testdir
}

for name in crio setup_crio start_crio_no_setup restart_crio reload_crio stop_crio stop_crio_no_clean \
	start_crio_with_websocket_stream_server copyimg setup_img replace_config \
	prepare_cni_plugin prepare_chained_cni_plugins \
	create_runtime_with_allowed_annotation create_runtime_with_seccomp_profile create_workload_with_allowed_annotation \
	run_buildah; do
	eval "function $name() { skip 'it configures or restarts CRI-O'; }"
done
for name in wait_for_log check_conmon_cpuset check_journald setup_kubensmnt; do
	eval "function $name() { skip 'it looks into the log or the processes of CRI-O'; }"
done
function runtime() { skip "it asks the OCI runtime of CRI-O"; }
function has_criu() { skip "checkpoints are tested elsewhere"; }
function is_using_crun() { false; }
unset name
