#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proxy.h"

/*
 * The proxy of a container of a shim, or of an exec in it. It speaks ttrpc: a message is a header of ten bytes (the length
 * of the rest, the number of the call, the kind, and flags), and a Request or Response of protobuf.
 *
 * The shim opens the container's standard streams by their paths below /proc/PID/fd of this process. A shim holds the input
 * of a container open itself, until it is told to close it, so that the end of the keeper's pipe would not come through. So
 * the container has the other end of a second pipe, which this process fills from the keeper's. The end of that is the
 * call CloseIO.
 *
 * A shim of a container with a terminal has that terminal itself, and two pipes for what passes through it. This process
 * copies between these and a terminal of the keeper's, which is in raw mode, and which is the controlling terminal of this
 * process: its new sizes come as signals.
 *
 * The proxy of a pod's first container also answers the events of the shim. Some shims end if they cannot send one, and a
 * keeper may be killed. An event that says that memory was short makes a file in the bundle of its container; the working
 * directory has the bundles. All other events say what proxies know already.
 */

enum { REQUEST = 1, RESPONSE = 2, HEADER = 10 };

/* The codes of gRPC that have a meaning here. */
enum { OK = 0, NOT_FOUND = 5 };

/* How often the proxy calls a shim again that lives and does not answer, and how soon. */
enum { TRIES = 20 };
static const struct timespec nap = {0, 250 * 1000 * 1000};

/* How long the shim may take to forget an exec that has ended, in seconds. */
enum { FORGET = 5 };

static struct {
	const char *socket, *service, *id, *exec;
	int fd;
	uint32_t calls;
} shim;

/* A message that is being made. */
struct message {
	unsigned char data[4096];
	size_t n;
};

static void put(struct message *m, const void *data, size_t n)
{
	if (n > sizeof m->data - m->n)
		_exit(PROXY_UNKNOWN);
	memcpy(m->data + m->n, data, n);
	m->n += n;
}

static void put_varint(struct message *m, uint64_t v)
{
	unsigned char b;

	do {
		b = v & 0x7f;
		v >>= 7;
		if (v != 0)
			b |= 0x80;
		put(m, &b, 1);
	} while (v != 0);
}

static void put_bytes(struct message *m, unsigned number, const void *data, size_t n)
{
	if (n == 0)
		return;
	put_varint(m, number << 3 | 2);
	put_varint(m, n);
	put(m, data, n);
}

static void put_string(struct message *m, unsigned number, const char *s)
{
	put_bytes(m, number, s, strlen(s));
}

static void put_number(struct message *m, unsigned number, uint64_t v)
{
	if (v == 0)
		return;
	put_varint(m, number << 3);
	put_varint(m, v);
}

/* A message that is being read. */
struct part {
	const unsigned char *at, *end;
};

static int get_varint(struct part *p, uint64_t *v)
{
	*v = 0;
	for (unsigned shift = 0; p->at < p->end && shift < 64; shift += 7) {
		unsigned char b = *p->at++;

		*v |= (uint64_t)(b & 0x7f) << shift;
		if ((b & 0x80) == 0)
			return 1;
	}
	return 0;
}

/* get reads a field: its number, and its value or its bytes. It is false at the end, and where the message is spoilt. */
static int get(struct part *p, uint64_t *number, uint64_t *value, struct part *bytes)
{
	uint64_t key, n;

	if (p->at >= p->end || !get_varint(p, &key))
		return 0;
	*number = key >> 3;
	*value = 0;
	*bytes = (struct part){p->end, p->end};
	switch (key & 7) {
	case 0:
		return get_varint(p, value);
	case 1:
		n = 8;
		break;
	case 2:
		if (!get_varint(p, &n))
			return 0;
		break;
	case 5:
		n = 4;
		break;
	default:
		return 0;
	}
	if (n > (uint64_t)(p->end - p->at))
		return 0;
	*bytes = (struct part){p->at, p->at + n};
	p->at += n;
	return 1;
}

static int connect_to_shim(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t n = strlen(shim.socket);

	if (n >= sizeof address.sun_path)
		_exit(PROXY_UNKNOWN);
	memcpy(address.sun_path, shim.socket, n);
	if (address.sun_path[0] == '@')
		address.sun_path[0] = 0;
	shim.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (shim.fd < 0)
		return 0;
	shim.calls = 0;
	if (connect(shim.fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) == 0)
		return 1;
	close(shim.fd);
	shim.fd = -1;
	return 0;
}

static void disconnect(void)
{
	if (shim.fd >= 0)
		close(shim.fd);
	shim.fd = -1;
}

/* named begins the request of a call, which names the container and the exec. */
static struct message *named(void)
{
	static struct message m;

	m.n = 0;
	put_string(&m, 1, shim.id);
	put_string(&m, 2, shim.exec);
	return &m;
}

/* call makes a call, and returns its number, or 0 if the connection has ended. */
static uint32_t call(const char *method, const struct message *request)
{
	static struct message m, metadata;
	uint32_t length, stream = 2 * shim.calls++ + 1, n;

	if (shim.fd < 0)
		return 0;
	metadata.n = 0;
	put_string(&metadata, 1, "containerd-namespace-ttrpc");
	put_string(&metadata, 2, "k8s.io");
	m.n = HEADER;
	put_string(&m, 1, shim.service);
	put_string(&m, 2, method);
	put_bytes(&m, 3, request->data, request->n);
	put_bytes(&m, 5, metadata.data, metadata.n);
	length = htonl((uint32_t)m.n - HEADER);
	n = htonl(stream);
	memcpy(m.data, &length, 4);
	memcpy(m.data + 4, &n, 4);
	m.data[8] = REQUEST;
	m.data[9] = 0;
	for (size_t sent = 0; sent < m.n;) {
		ssize_t w = send(shim.fd, m.data + sent, m.n - sent, MSG_NOSIGNAL);

		if (w <= 0) {
			disconnect();
			return 0;
		}
		sent += (size_t)w;
	}
	return stream;
}

struct answer {
	uint32_t stream;
	uint64_t code;
	struct part text, payload;
};

static int read_all(int fd, unsigned char *to, size_t n)
{
	while (n > 0) {
		ssize_t r = recv(fd, to, n, 0);

		if (r <= 0)
			return 0;
		to += r;
		n -= (size_t)r;
	}
	return 1;
}

/* read_message reads a message, at most as much as there is room for. It is false if the connection has ended. */
static int read_message(int fd, unsigned char head[HEADER], unsigned char *data, size_t room, struct part *p)
{
	unsigned char rest[512];
	uint32_t length;
	size_t n;

	if (!read_all(fd, head, HEADER))
		return 0;
	memcpy(&length, head, 4);
	length = ntohl(length);
	n = length < room ? length : room;
	if (!read_all(fd, data, n))
		return 0;
	for (size_t left = length - n; left > 0;) {
		size_t some = left < sizeof rest ? left : sizeof rest;

		if (!read_all(fd, rest, some))
			return 0;
		left -= some;
	}
	*p = (struct part){data, data + n};
	return 1;
}

/* inner is the last field of that number, which is a message or a text. It is empty where there is none. */
static struct part inner(struct part p, uint64_t wanted)
{
	struct part found = {p.end, p.end}, bytes;
	uint64_t number, value;

	while (get(&p, &number, &value, &bytes))
		if (number == wanted)
			found = bytes;
	return found;
}

/* The connections of the shim over which it sends events. */
enum { SENDERS = 4 };
static int senders[SENDERS] = {-1, -1, -1, -1};
static int events = -1;

/* note_oom makes a file in the bundle of the container that an event is about, if it says that memory was short. */
static void note_oom(struct part event)
{
	static const char oom[] = "containerd.events.TaskOOM", name[] = "/oom";
	struct part type = inner(event, 1), id = inner(inner(event, 2), 1);
	size_t length = (size_t)(type.end - type.at), n = (size_t)(id.end - id.at);
	char path[256];
	int fd;

	if (length < sizeof oom - 1 || memcmp(type.end - (sizeof oom - 1), oom, sizeof oom - 1) != 0)
		return;
	if (n == 0 || n > sizeof path - sizeof name || *id.at == '.' || memchr(id.at, '/', n) != NULL ||
	    memchr(id.at, 0, n) != NULL)
		return;
	memcpy(path, id.at, n);
	memcpy(path + n, name, sizeof name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd >= 0)
		close(fd);
}

/* take_event reads an event and answers it. It is false if the connection has ended. */
static int take_event(int fd)
{
	static unsigned char data[16384];
	unsigned char head[HEADER];
	struct part request;

	if (!read_message(fd, head, data, sizeof data, &request))
		return 0;
	if (head[8] != REQUEST)
		return 1;
	/* The payload of the request has an envelope, and that the event. */
	note_oom(inner(inner(inner(request, 3), 1), 4));
	memset(head, 0, 4); /* an empty answer, to the same call */
	head[8] = RESPONSE;
	head[9] = 0;
	return send(fd, head, sizeof head, MSG_NOSIGNAL) == sizeof head;
}

/* events_wait fills in what take_events waits for. */
static void events_wait(struct pollfd *fds)
{
	fds[SENDERS] = (struct pollfd){.fd = events, .events = POLLIN};
	for (int i = 0; i < SENDERS; i++)
		fds[i] = (struct pollfd){.fd = senders[i], .events = POLLIN};
}

static void take_events(const struct pollfd *fds)
{
	const struct timeval limit = {1, 0};
	int fd;

	for (int i = 0; i < SENDERS; i++)
		if (senders[i] >= 0 && fds[i].revents != 0 && !take_event(senders[i])) {
			close(senders[i]);
			senders[i] = -1;
		}
	if (fds[SENDERS].revents == 0)
		return;
	fd = accept4(events, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	for (int i = 0; i < SENDERS; i++)
		if (senders[i] < 0) {
			senders[i] = fd;
			return;
		}
	close(senders[0]); /* the oldest: whoever it is connects again */
	senders[0] = fd;
}

/* await waits until a descriptor can be read, and answers events meanwhile. */
static void await(int fd)
{
	struct pollfd fds[SENDERS + 2];

	for (;;) {
		events_wait(fds);
		fds[SENDERS + 1] = (struct pollfd){.fd = fd, .events = POLLIN};
		if (poll(fds, SENDERS + 2, -1) < 0)
			continue;
		take_events(fds);
		if (fds[SENDERS + 1].revents != 0)
			return;
	}
}

static int is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

void proxy_await_keeper(void)
{
	if (is_open(PROXY_FD_EVENTS))
		events = PROXY_FD_EVENTS;
	await(PROXY_FD_KEEPER);
}

/* receive reads an answer, whose parts stay until the next one. It is false if the connection has ended. */
static int receive(struct answer *a)
{
	static unsigned char data[16384];
	unsigned char head[HEADER];
	struct part p, bytes, status;
	uint64_t number, value;
	uint32_t stream;

	memset(a, 0, sizeof *a);
	if (shim.fd < 0)
		return 0;
	if (!read_message(shim.fd, head, data, sizeof data, &p)) {
		disconnect();
		return 0;
	}
	if (head[8] != RESPONSE)
		return 1;
	memcpy(&stream, head + 4, 4);
	a->stream = ntohl(stream);
	a->payload = inner(p, 2);
	status = inner(p, 1);
	while (get(&status, &number, &value, &bytes)) {
		if (number == 1)
			a->code = value;
		else if (number == 2)
			a->text = bytes;
	}
	return 1;
}

/* start lets the program begin, and tells the keeper. */
static void start(void)
{
	struct proxy_start how = {.status = -1};
	struct answer a;
	uint32_t stream = 0;
	size_t text;

	if (connect_to_shim())
		stream = call("Start", named());
	while (stream != 0) {
		await(shim.fd);
		if (!receive(&a))
			break;
		if (a.stream != stream)
			continue;
		how.status = (int)a.code;
		text = (size_t)(a.text.end - a.text.at);
		if (text > sizeof how.text)
			text = sizeof how.text;
		if (text > 0)
			memcpy(how.text, a.text.at, text);
		proxy_tell(&how, text);
		return;
	}
	text = (size_t)snprintf(how.text, sizeof how.text, "the shim has ended the connection");
	proxy_tell(&how, text);
}

/* What is copied from one descriptor to another, of which none blocks. */
struct relay {
	int from, to; /* -1: there is nothing more */
	size_t begin, end;
	char data[4096];
};

static struct relay input = {.from = -1}, output = {.from = -1};

static struct pollfd relay_waits(const struct relay *r)
{
	if (r->from >= 0 && r->begin == r->end)
		return (struct pollfd){.fd = r->from, .events = POLLIN};
	if (r->from >= 0)
		return (struct pollfd){.fd = r->to, .events = POLLOUT};
	return (struct pollfd){.fd = -1};
}

/* relay copies what there is. It is false once there is nothing more. */
static int relay(struct relay *r)
{
	ssize_t n;

	if (r->begin == r->end) {
		n = read(r->from, r->data, sizeof r->data);
		if (n < 0 && errno == EAGAIN)
			return 1;
		if (n <= 0)
			goto ended;
		r->begin = 0;
		r->end = (size_t)n;
	}
	n = write(r->to, r->data + r->begin, r->end - r->begin);
	if (n < 0 && errno == EAGAIN)
		return 1;
	if (n <= 0)
		goto ended;
	r->begin += (size_t)n;
	return 1;
ended:
	r->from = -1;
	return 0;
}

/* How long a shim may take to open the input after it has answered Start, in naps of so many milliseconds. */
enum { OPEN_NAP = 5, OPEN_NAPS = 6000 };

/*
 * input_is_open tells whether the shim has opened the container's input. Shims of containerd's make open it in the
 * background, and may answer Start before. Until then nobody reads: a write would fail as if the program had closed its
 * input, and the end would close the pipe before it is opened, with what is in it. Once the shim has opened it, this stays
 * true.
 */
static int input_is_open(void)
{
	static int naps, opened;
	struct pollfd p = {.fd = input.to, .events = POLLOUT};

	if (!opened)
		opened = (poll(&p, 1, 0) >= 0 && (p.revents & POLLERR) == 0) || ++naps > OPEN_NAPS;
	return opened;
}

/* end_input tells the shim that no more input comes. */
static void end_input(void)
{
	struct message *m = named();

	close(input.to);
	put_number(m, 3, 1);
	call("CloseIO", m);
}

/* How long the rest of a terminal's output may take, in milliseconds. */
enum { REST = 5000 };

/* copy_rest copies what the shim still has of the output of a container that has ended. */
static void copy_rest(void)
{
	struct timespec now;
	long left, end;

	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec * 1000 + now.tv_nsec / 1000000 + REST;
	while (output.from >= 0) {
		struct pollfd p = relay_waits(&output);

		clock_gettime(CLOCK_MONOTONIC, &now);
		left = end - now.tv_sec * 1000 - now.tv_nsec / 1000000;
		if (left <= 0 || poll(&p, 1, (int)left) <= 0)
			return;
		relay(&output);
	}
}

/* end ends the process with the exit code that the shim has answered. */
static void end(struct part payload)
{
	const struct timeval limit = {FORGET, 0};
	uint64_t number, value, code = 0;
	struct answer a;
	struct part bytes;
	uint32_t stream;

	while (get(&payload, &number, &value, &bytes))
		if (number == 1)
			code = value;
	copy_rest();
	if (*shim.exec != 0) {
		/* The shim would keep it as long as the container. It answers when all output of the exec is copied. */
		setsockopt(shim.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		stream = call("Delete", named());
		while (stream != 0 && receive(&a) && a.stream != stream)
			;
	}
	_exit(code > 255 ? PROXY_UNKNOWN : (int)code);
}

static void resize(void)
{
	struct message *m;
	struct winsize size;

	if (ioctl(PROXY_FD_INPUT, TIOCGWINSZ, &size) < 0 || size.ws_row == 0 || size.ws_col == 0)
		return;
	m = named();
	put_number(m, 3, size.ws_col);
	put_number(m, 4, size.ws_row);
	call("ResizePty", m);
}

/* pass_on reads a signal, and passes it on. It returns the number of the call, 0: there is none. */
static uint32_t pass_on(int signals)
{
	struct signalfd_siginfo info;
	struct message *m;

	if (read(signals, &info, sizeof info) != sizeof info || info.ssi_signo == SIGCHLD)
		return 0;
	if (info.ssi_code == SI_KERNEL) { /* of the terminal: it is none of the container's */
		if (info.ssi_signo == SIGWINCH)
			resize();
		return 0;
	}
	m = named();
	put_number(m, 3, info.ssi_signo);
	return call("Kill", m);
}

static void copy_log(void)
{
	char text[4096];
	ssize_t n = read(PROXY_FD_LOG, text, sizeof text);

	if (n > 0 && write(PROXY_FD_ERRORS, text, (size_t)n) < 0)
		return; /* nobody reads what the keeper complains of */
}

/* follow ends as the container does. */
static void follow(int signals, int log)
{
	enum { EVENTS, SHIM = EVENTS + SENDERS + 1, SIGNALS, INPUT, OUTPUT, LOG, FDS };
	uint32_t wait = 0, kill = 0;
	struct pollfd fds[FDS];
	struct answer a;
	int limit;

	for (int tries = 0;;) {
		if (shim.fd < 0) {
			if (proxy_sandbox_is_gone(tries == 0 ? 1000 : 0))
				_exit(PROXY_KILLED);
			if (tries++ == TRIES)
				_exit(PROXY_UNKNOWN);
			nanosleep(&nap, NULL);
			wait = kill = 0;
			if (!connect_to_shim())
				continue;
		}
		if (wait == 0)
			wait = call("Wait", named());
		if (wait == 0)
			continue;
		events_wait(fds + EVENTS);
		fds[SHIM] = (struct pollfd){.fd = shim.fd, .events = POLLIN};
		/* One signal after the other: the shim is not to deliver them in another order. */
		fds[SIGNALS] = (struct pollfd){.fd = kill == 0 ? signals : -1, .events = POLLIN};
		fds[INPUT] = relay_waits(&input);
		limit = -1;
		if (input.from >= 0 && !input_is_open()) {
			fds[INPUT].fd = -1;
			limit = OPEN_NAP;
		}
		fds[OUTPUT] = relay_waits(&output);
		fds[LOG] = (struct pollfd){.fd = log ? PROXY_FD_LOG : -1, .events = POLLIN};
		if (poll(fds, FDS, limit) < 0)
			continue;
		take_events(fds + EVENTS);
		if (fds[LOG].revents != 0)
			copy_log();
		if (fds[INPUT].revents != 0 && !relay(&input))
			end_input();
		if (fds[OUTPUT].revents != 0)
			relay(&output);
		if (fds[SIGNALS].revents != 0)
			kill = pass_on(signals);
		if (fds[SHIM].revents == 0 || !receive(&a) || a.stream == 0)
			continue;
		if (a.code == OK)
			tries = 0;
		if (a.stream == kill)
			kill = 0;
		if (a.stream != wait)
			continue;
		if (a.code == OK)
			end(a.payload);
		if (a.code == NOT_FOUND)
			_exit(PROXY_UNKNOWN);
		disconnect(); /* and it is asked again, some time later */
	}
}

void proxy_of_shim(char **argv)
{
	int log = is_open(PROXY_FD_LOG), terminal = is_open(PROXY_FD_FROM_OUTPUT), signals;
	sigset_t all;

	if (is_open(PROXY_FD_EVENTS))
		events = PROXY_FD_EVENTS;
	if (is_open(PROXY_FD_TO_INPUT)) {
		input.from = PROXY_FD_INPUT;
		input.to = PROXY_FD_TO_INPUT;
	}
	if (terminal) {
		output.from = PROXY_FD_FROM_OUTPUT;
		output.to = PROXY_FD_INPUT;
	}
	/* What is opened from here on must not take the numbers of what is not there. */
	for (int fd = PROXY_FD_INPUT; fd < PROXY_FD_FREE; fd++)
		if (!is_open(fd))
			dup2(PROXY_FD_ERRORS, fd);
		else
			fcntl(fd, F_SETFL, O_NONBLOCK);
	shim.id = argv[PROXY_ARG_ID];
	shim.exec = argv[PROXY_ARG_DETAIL];
	shim.socket = argv[PROXY_ARG_SOCKET];
	shim.service = argv[PROXY_ARG_SERVICE];
	shim.fd = -1;
	start();
	proxy_drop_streams();
	sigfillset(&all);
	signals = signalfd(-1, &all, SFD_CLOEXEC);
	if (signals < 0)
		_exit(PROXY_UNKNOWN);
	if (terminal)
		resize();
	follow(signals, log);
}
