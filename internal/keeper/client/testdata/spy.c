/*
 * What a container can see of processes that appear in its PID namespace: it looks at each new one as often as it can,
 * and says so when that shows something of the host, or has more rights than the container. Arguments: the marks
 * of the host (see spy_test.go), its own capabilities, and what it does beside: nothing (look), it stops the processes
 * (stop), also those that are not there yet (hold), or stops them and has as many children as it may have (fill), until
 * SIGUSR1.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *mount_mark, *file_mark, *link_mark, *host_namespaces;
static unsigned long long rights;
static int stops, holds, fills;
static unsigned long looked, processes;

static void __attribute__((format(printf, 2, 3))) seen(int pid, const char *format, ...)
{
	char line[600];
	va_list ap;
	int n;

	n = snprintf(line, sizeof(line), "SEEN %d ", pid);
	va_start(ap, format);
	n += vsnprintf(line + n, sizeof(line) - n - 1, format, ap);
	va_end(ap);
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	if (write(1, line, n) < 0)
		_exit(1);
}

static const char *contents(int pid, const char *name)
{
	static char buf[64 * 1024];
	char path[64];
	int fd, n, have = 0;

	if (pid)
		snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	else
		snprintf(path, sizeof(path), "/proc/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	while (have < (int)sizeof(buf) - 1 && (n = read(fd, buf + have, sizeof(buf) - 1 - have)) > 0)
		have += n;
	close(fd);
	buf[have] = 0;
	return buf;
}

static unsigned long long number(const char *text, const char *name, int base)
{
	const char *at = strstr(text, name);

	return at ? strtoull(at + strlen(name), NULL, base) : 0;
}

static void look(int pid)
{
	static const char *const kinds[] = {"mnt", "net", "ipc", "uts", "cgroup"};
	char path[1024], target[256];
	const char *text;
	struct stat st;
	struct dirent *e;
	unsigned int i;
	ssize_t n;
	DIR *d;

	looked++;
	text = contents(pid, "mountinfo");
	if (text && strstr(text, mount_mark))
		seen(pid, "the host's mount table");
	snprintf(path, sizeof(path), "/proc/%d/root%s", pid, file_mark);
	if (stat(path, &st) == 0)
		seen(pid, "the host's root");
	snprintf(path, sizeof(path), "/proc/%d/cwd%s", pid, file_mark);
	if (stat(path, &st) == 0)
		seen(pid, "the host's root as a working directory");
	text = contents(pid, "net/dev");
	if (text && strstr(text, link_mark))
		seen(pid, "the host's network");
	for (i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, kinds[i]);
		n = readlink(path, target, sizeof(target) - 1);
		if (n > 0 && (target[n] = 0, strstr(host_namespaces, target)))
			seen(pid, "a namespace of the host: %s", target);
	}
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	for (d = opendir(path); d && (e = readdir(d));) {
		if (!isdigit(*e->d_name))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/fd/%s", pid, e->d_name);
		n = readlink(path, target, sizeof(target) - 1);
		if (n > 0 && (target[n] = 0, stat(path, &st) == 0) && S_ISDIR(st.st_mode))
			seen(pid, "an open directory: %s", target);
		snprintf(path, sizeof(path), "/proc/%d/fd/%s%s", pid, e->d_name, file_mark);
		if (stat(path, &st) == 0)
			seen(pid, "a way to the host by a descriptor");
	}
	if (d)
		closedir(d);
	text = contents(pid, "status");
	if (text && strstr(text, "CapPrm:")) {
		unsigned long long have = number(text, "CapPrm:", 16) | number(text, "CapEff:", 16);
		int filtered = number(text, "Seccomp:", 10) == 2;

		/* CAP_SYS_ADMIN with a filter that leaves nothing to do with it is what opens a pod's procfs. */
		if (have & ~rights && !(have == 1ULL << 21 && filtered && number(text, "NoNewPrivs:", 10)))
			seen(pid, "capabilities %llx", have);
		if (!filtered)
			seen(pid, "no seccomp filter");
	}
}

/* The number that was given last in this PID namespace (proc_loadavg(5)). */
static int newest(void)
{
	const char *text = contents(0, "loadavg");
	const char *at = text ? strrchr(text, ' ') : NULL;

	return at ? atoi(at) : 0;
}

static int look_for_a_while(int pid)
{
	char path[32];
	int times;

	snprintf(path, sizeof(path), "/proc/%d", pid);
	for (times = 0; times < 40 && access(path, F_OK) == 0; times++)
		look(pid);
	return times > 0;
}

static volatile sig_atomic_t over, enough;

static void on_signal(int s) { *(s == SIGTERM ? &over : &enough) = 1; }

static pid_t children[4096];
static int count;

static void fill(void)
{
	pid_t pid;

	while (count < (int)(sizeof(children) / sizeof(*children)) && (pid = fork()) >= 0) {
		if (pid == 0)
			for (;;)
				pause();
		children[count++] = pid;
	}
}

static void end_children(void)
{
	while (count > 0)
		kill(children[--count], SIGKILL);
}

int main(int argc, char **argv)
{
	int self = getpid(), last = self, now, pid;

	if (argc != 7)
		return 2;
	mount_mark = argv[1];
	file_mark = argv[2];
	link_mark = argv[3];
	host_namespaces = argv[4];
	rights = strtoull(argv[5], NULL, 16);
	holds = strcmp(argv[6], "hold") == 0;
	fills = strcmp(argv[6], "fill") == 0;
	stops = holds || fills || strcmp(argv[6], "stop") == 0;
	signal(SIGTERM, on_signal);
	signal(SIGUSR1, on_signal);
	signal(SIGCHLD, SIG_IGN); /* nothing stays of a child that has ended */
	if (fills) {
		fill();
		last = newest();
	}
	if (write(1, "READY\n", 6) != 6)
		return 1;
	while (!over) {
		if (enough)
			end_children();
		now = newest();
		if (stops)
			for (pid = last + 1; pid <= now + 1; pid++)
				kill(pid, SIGSTOP);
		/* A number is given before a process has it, so a signal to a new number may come too early. */
		if (holds)
			for (pid = last; pid > last - 16 && pid > self; pid--)
				kill(pid, SIGSTOP);
		for (pid = now + 1; pid > last && !over; pid--) {
			processes += look_for_a_while(pid);
			if (stops && !holds)
				kill(pid, SIGCONT);
		}
		if (now > last)
			last = now;
	}
	printf("LOOKED %lu times at %lu processes\n", looked, processes);
	return 0;
}
