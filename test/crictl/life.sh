#!/bin/sh
# The life of a pod by crictl, from the pull of its image to the removal of both.
#
#   CRICTL=path ADDRESS=unix:///run/berth/berth.sock IMAGE=reference WORK=directory life.sh
#
# IMAGE is a busybox. WORK takes configuration and logs. CGROUP may name a cgroup parent for the
# pod, and TRANSPORTS what exec is tried over (spdy and websocket).
set -eu
: "${CRICTL:?}" "${ADDRESS:?}" "${IMAGE:?}" "${WORK:?}"

config=$WORK/crictl.yaml
printf 'runtime-endpoint: %s\nimage-endpoint: %s\ntimeout: 120\n' "$ADDRESS" "$ADDRESS" >"$config"

crictl() { "$CRICTL" --config "$config" "$@"; }
step() { printf '== %s\n' "$*"; }
fail() {
	printf 'FAIL: %s\n' "$*" >&2
	exit 1
}
# want TEXT WHAT: stdin contains TEXT.
want() {
	got=$(cat)
	case $got in
	*"$1"*) ;;
	*) fail "$2: want \"$1\" in: $got" ;;
	esac
}
# lacks TEXT WHAT: stdin does not contain TEXT.
lacks() {
	got=$(cat)
	case $got in
	*"$1"*) fail "$2: \"$1\" is still in: $got" ;;
	esac
}
# eventually COMMAND...: it succeeds within a minute.
eventually() {
	tries=0
	until "$@"; do
		tries=$((tries + 1))
		[ "$tries" -lt 600 ] || fail "not within a minute: $*"
		sleep 0.1
	done
}

mkdir -p "$WORK/logs"
cat >"$WORK/pod.json" <<EOF
{
  "metadata": {"name": "crictl-pod", "namespace": "crictl", "uid": "crictl-uid", "attempt": 1},
  "hostname": "crictl-host",
  "log_directory": "$WORK/logs",
  "labels": {"app": "crictl"},
  "annotations": {"note": "as it was"},
  "linux": {"cgroup_parent": "${CGROUP:-}"}
}
EOF
cat >"$WORK/web.json" <<EOF
{
  "metadata": {"name": "web"},
  "image": {"image": "$IMAGE"},
  "command": ["sh", "-c",
    "mkdir -p /www; echo page of the pod >/www/index.html; echo serving; echo trouble >&2; exec httpd -f -p 8080 -h /www"],
  "log_path": "web.log",
  "labels": {"part": "web"},
  "linux": {"resources": {"memory_limit_in_bytes": 134217728, "cpu_shares": 512}}
}
EOF
cat >"$WORK/echo.json" <<EOF
{
  "metadata": {"name": "echo"},
  "image": {"image": "$IMAGE"},
  "command": ["sh", "-c", "while read line; do echo got \$line; [ \"\$line\" = quit ] && exit 3; done"],
  "log_path": "echo.log",
  "stdin": true,
  "linux": {}
}
EOF

step version, info
crictl version | want 'RuntimeApiVersion:  v1' version
crictl info | want RuntimeReady info

step pull, images, inspecti, imagefsinfo
crictl pull "$IMAGE" | want 'Image is up to date' pull
crictl images | want "${IMAGE%:*}" images
crictl inspecti "$IMAGE" | want "$IMAGE" inspecti
crictl imagefsinfo | want usedBytes imagefsinfo

step runp, pods, inspectp
pod=$(crictl runp "$WORK/pod.json")
crictl pods --name crictl-pod --state ready -q | want "$pod" pods
crictl pods --label app=crictl -q | want "$pod" 'pods by label'
crictl pods --label app=other -q | lacks "$pod" 'pods by another label'
crictl inspectp "$pod" | want '"note": "as it was"' inspectp
crictl inspectp "$pod" | want SANDBOX_READY inspectp

step create, ps, start, inspect
web=$(crictl create --no-pull "$pod" "$WORK/web.json" "$WORK/pod.json")
crictl ps -a --state created -q | want "$web" 'ps of a created container'
crictl start "$web" | want "$web" start
crictl ps -q --name web --pod "$pod" | want "$web" ps
crictl ps -q --label part=web | want "$web" 'ps by label'
crictl inspect "$web" | want CONTAINER_RUNNING inspect

step logs
logged() { crictl logs "$web" 2>/dev/null | grep -q '^serving$'; }
eventually logged
crictl logs "$web" 2>&1 >/dev/null | want trouble 'logs of stderr'
crictl logs --tail 1 --timestamps "$web" 2>&1 | want T 'logs with timestamps'

step exec
crictl exec -s "$web" cat /etc/hostname | want crictl-host 'exec -s'
for transport in ${TRANSPORTS:-spdy websocket}; do
	crictl exec -r "$transport" "$web" cat /etc/hostname | want crictl-host "exec by $transport"
done
echo from outside | crictl exec -i "$web" cat | want 'from outside' 'exec -i'
if crictl exec -s "$web" sh -c 'exit 5' 2>"$WORK/exec.err"; then fail 'exec -s of a failing command succeeds'; fi
want 5 'exit code of exec -s' <"$WORK/exec.err"
if crictl exec "$web" sh -c 'exit 6' 2>"$WORK/exec.err"; then fail 'exec of a failing command succeeds'; fi
want 6 'exit code of exec' <"$WORK/exec.err"
if command -v script >/dev/null; then
	script -qec "'$CRICTL' --config '$config' exec -it '$web' sh -c 'tty; stty size'" /dev/null </dev/null |
		want /dev/pts/ 'exec -it'
fi

step attach
echo=$(crictl create --no-pull "$pod" "$WORK/echo.json" "$WORK/pod.json")
crictl start "$echo" >/dev/null
{
	echo one
	sleep 0.5
	echo quit
	sleep 0.5
} | crictl attach -i "$echo" | want 'got one' attach
ended() { crictl inspect "$echo" | grep -q '"exitCode": 3'; }
eventually ended
crictl logs "$echo" | want 'got quit' 'logs of the attached container'

step port-forward
crictl port-forward "$pod" 0:8080 >"$WORK/forward.out" 2>"$WORK/forward.err" &
forward=$!
trap 'kill $forward 2>/dev/null || :' EXIT
port=
forwarding() {
	port=$(sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' "$WORK/forward.out")
	[ -n "$port" ]
}
eventually forwarding
printf 'GET /index.html HTTP/1.0\r\n\r\n' | busybox nc -w 60 127.0.0.1 "$port" | want 'page of the pod' port-forward
kill $forward
wait $forward 2>/dev/null || :
trap - EXIT

step stats, statsp
crictl stats -o json "$web" | want '"workingSetBytes"' stats
crictl statsp -o json "$pod" | want '"cpu"' statsp

step update
crictl update --memory 268435456 --cpu-share 256 "$web" | want "$web" update
crictl inspect -o go-template --template '{{.status.resources.linux.memoryLimitInBytes}}' "$web" |
	want 268435456 'inspect after update'

step logs --reopen
mv "$WORK/logs/web.log" "$WORK/logs/web.log.1"
crictl logs --reopen "$web" >/dev/null
[ -f "$WORK/logs/web.log" ] || fail 'no new log after logs --reopen'

step stop, rm
crictl stop --timeout 1 "$web" | want "$web" stop
crictl stop --timeout 1 "$web" | want "$web" 'stop again'
crictl inspect "$web" | want CONTAINER_EXITED 'inspect after stop'
crictl rm "$web" "$echo" | want "$web" rm
crictl ps -a -q | lacks "$web" 'ps after rm'

step stopp, rmp
crictl stopp "$pod" | want "$pod" stopp
crictl pods --state notready -q | want "$pod" 'pods after stopp'
crictl rmp "$pod" | want "$pod" rmp
crictl pods -q | lacks "$pod" 'pods after rmp'

step rmi
crictl rmi "$IMAGE" | want "$IMAGE" rmi
if crictl inspecti "$IMAGE" >/dev/null 2>&1; then fail 'the image is still there after rmi'; fi
step done
