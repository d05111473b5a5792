#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
/* Of <sys/mount.h>, which does not go together with <linux/mount.h> everywhere. */
int mount(const char *, const char *, const char *, unsigned long, const void *);
int umount2(const char *, int);
#ifndef MNT_DETACH
#define MNT_DETACH 2
#endif
#define PROC_ROOT_INO 1
#define ALL_PROPAGATION (MS_SHARED | MS_PRIVATE | MS_SLAVE | MS_UNBINDABLE)
#define MAX_LINKS 40

/*
 * Every target is looked up with the container's root as the only root there is, before the pivot as after it.
 * Links of the image may lead anywhere inside; magic links, which lead outside, are never followed.
 */

static int root = -1;       /* the root of a mount */
static uint64_t proc_mount; /* number of the container's /proc; 0: none yet */
static int current;         /* operation */

/* The mount namespace that sources came from, and the host's /proc: see take_again. Closed before the pivot; -1: none. */
static int node_mounts = -1, host_proc = -1;

static void __attribute__((noreturn)) fail_op_with(int step, int error) { stage_fail_at(step, error, current); }
static void __attribute__((noreturn)) fail_op(int step) { fail_op_with(step, errno); }

static int set_attributes(int fd, unsigned int flags, uint64_t set, uint64_t clear, uint64_t propagation)
{
	struct mount_attr a = {.attr_set = set, .attr_clr = clear, .propagation = propagation};

	return stage_call(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | flags, &a, sizeof(a));
}

static int propagate(int fd, uint64_t flags)
{
	return set_attributes(fd, flags & MS_REC ? AT_RECURSIVE : 0, 0, 0, flags & ALL_PROPAGATION);
}

static int clone_tree(int dir, const char *path, unsigned int flags)
{
	return stage_call(SYS_open_tree, dir, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags);
}

static int attach(int tree, int target)
{
	return stage_call(SYS_move_mount, tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

static int open_in_root(const char *path, uint64_t flags, uint64_t resolve)
{
	struct open_how how = {
		.flags = flags | O_CLOEXEC,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve,
	};
	int i, fd = -1;

	/* Another process that renames makes it unsure whether ".." leads out; then the kernel says so. */
	for (i = 0; i < 100; i++) {
		fd = stage_call(SYS_openat2, root, path, &how, sizeof(how));
		if (fd >= 0 || errno != EAGAIN)
			break;
	}
	return fd;
}

/* EEXIST: it is something else. */
static int make_directory(int dir, const char *name)
{
	int fd;

	if (*name && strcmp(name, ".") != 0 && mkdirat(dir, name, 0755) != 0 && errno != EEXIST)
		return -1;
	fd = openat(dir, *name ? name : ".", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		errno = EEXIST;
	return fd;
}

/*
 * The target, made if it is not there: directories, and an empty file at the end if file says so. A link that leads
 * to nothing is one to a place where it is made.
 */
static int reach(const char *target, int file)
{
	char path[PATH_MAX], link[PATH_MAX], longer[PATH_MAX];
	int hops, dir, fd;
	char *cut, *name, *rest;
	ssize_t n;

	if (snprintf(path, sizeof(path), "%s", target) >= (int)sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	for (hops = 0; hops < MAX_LINKS; hops++) {
		fd = open_in_root(path, O_PATH, 0);
		if (fd >= 0 || errno != ENOENT)
			return fd;
		/* The longest part that there is. */
		cut = path + strlen(path);
		for (dir = -1; dir < 0;) {
			while (cut > path && *--cut != '/')
				;
			*cut = 0;
			dir = open_in_root(cut == path ? "/" : path, O_PATH | O_DIRECTORY, 0);
			*cut = '/';
			if (dir < 0 && (errno != ENOENT || cut == path))
				return -1;
		}
		for (name = cut + 1;; name = rest) {
			rest = strchr(name, '/');
			if (rest)
				*rest++ = 0;
			if (strcmp(name, "..") == 0) {
				close(dir);
				errno = EINVAL;
				return -1;
			}
			if (!rest && file) {
				fd = openat(dir, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
				if (fd >= 0) {
					close(dir);
					return fd;
				}
			} else {
				fd = make_directory(dir, name);
				if (fd >= 0) {
					close(dir);
					dir = fd;
					if (!rest)
						return dir;
					rest[-1] = '/';
					continue;
				}
			}
			n = errno == EEXIST ? readlinkat(dir, name, link, sizeof(link) - 1) : -1;
			close(dir);
			if (n < 0)
				return -1;
			link[n] = 0;
			name[-1] = 0;
			if (snprintf(longer, sizeof(longer), "%s/%s%s%s", *link == '/' ? "" : path, link, rest ? "/" : "",
				     rest ? rest : "") >= (int)sizeof(longer)) {
				errno = ENAMETOOLONG;
				return -1;
			}
			memcpy(path, longer, sizeof(path));
			break;
		}
	}
	errno = ELOOP;
	return -1;
}

/* The target of a mount, if it is there. */
static int open_target(const struct stage_op *op)
{
	return open_in_root(stage_text(op->target), O_PATH,
	    op->flags & (OP_PLAIN_TARGET | OP_IN_PROC) ? RESOLVE_NO_SYMLINKS : 0);
}

/* The directory of a path, and the name in it. */
static int reach_parent(const char *path, const char **name)
{
	char dir[PATH_MAX];
	const char *slash = strrchr(path, '/');

	if (!slash || (size_t)(slash - path) >= sizeof(dir)) {
		errno = EINVAL;
		return -1;
	}
	*name = slash + 1;
	memcpy(dir, path, (size_t)(slash - path));
	dir[slash - path] = 0;
	return reach(*dir ? dir : "/", 0);
}

static int look(int fd, struct statx *x)
{
	return (int)syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT,
	    STATX_INO | STATX_TYPE | STATX_MODE | STATX_MNT_ID, x);
}

static int is_proc(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC;
}

/* Nothing is mounted over the root, nor over what a program believes of /proc. */
static void check_target(const struct stage_op *op, int target, struct statx *x)
{
	struct statx top;

	if (look(target, x) != 0 || look(root, &top) != 0)
		fail_op(STEP_TARGET);
	if (x->stx_mnt_id == top.stx_mnt_id && x->stx_ino == top.stx_ino)
		fail_op_with(STEP_FORBIDDEN, EBUSY);
	if (op->flags & OP_IS_PROC || (proc_mount && x->stx_mnt_id == proc_mount && x->stx_ino == PROC_ROOT_INO)) {
		if (op->kind == OP_BIND ? !is_proc(op->fd) : strcmp(stage_text(op->type), "proc") != 0)
			fail_op_with(STEP_FORBIDDEN, EPERM);
	} else if (proc_mount && x->stx_mnt_id == proc_mount && !(op->flags & OP_IN_PROC)) {
		fail_op_with(STEP_FORBIDDEN, EPERM);
	}
}

static void note_proc(const struct stage_op *op)
{
	struct statx x;
	int fd;

	if (!(op->flags & OP_IS_PROC))
		return;
	fd = open_in_root("/proc", O_PATH, RESOLVE_NO_SYMLINKS);
	if (fd < 0 || look(fd, &x) != 0 || !is_proc(fd))
		fail_op_with(STEP_FORBIDDEN, EPERM);
	proc_mount = x.stx_mnt_id;
	close(fd);
}

static int configure(int fs, const char *key, const char *value)
{
	return stage_call(SYS_fsconfig, fs, value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, key, value, 0);
}

/* A procfs of the PID namespace that this process's child will be in. */
static void mount_proc(const struct stage_op *op, int target)
{
	char options[256], *option, *next, *value;
	int tree;

	if (snprintf(options, sizeof(options), "%s", stage_text(op->data)) >= (int)sizeof(options))
		fail_op_with(STEP_OPERATION, ENAMETOOLONG);
	if (configure(stage_proc, "source", "proc") != 0)
		fail_op(STEP_OPERATION);
	for (option = *options ? options : NULL; option; option = next) {
		if ((next = strchr(option, ',')))
			*next++ = 0;
		if ((value = strchr(option, '=')))
			*value++ = 0;
		if (configure(stage_proc, option, value) != 0)
			fail_op(STEP_OPERATION);
	}
	if (syscall(SYS_fsconfig, stage_proc, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
		fail_op(STEP_OPERATION);
	tree = stage_call(SYS_fsmount, stage_proc, FSMOUNT_CLOEXEC, (unsigned int)op->set);
	if (tree < 0 || attach(tree, target) != 0)
		fail_op(STEP_OPERATION);
	close(tree);
	close(stage_proc);
	stage_proc = -1;
}

static void do_mount(const struct stage_op *op)
{
	char data[PATH_MAX];
	const char *options = stage_text(op->data);
	struct statx x;
	int target, there = 1;

	target = open_target(op);
	if (target < 0 && errno == ENOENT) {
		there = 0;
		target = reach(stage_text(op->target), 0);
	}
	if (target < 0)
		fail_op(STEP_TARGET);
	check_target(op, target, &x);
	if (op->flags & OP_COPY_MODE && there) {
		if (snprintf(data, sizeof(data), "mode=%04o%s%s", x.stx_mode & 07777, *options ? "," : "", options) >=
		    (int)sizeof(data))
			fail_op_with(STEP_OPERATION, ENAMETOOLONG);
		options = data;
	}
	if (stage_proc >= 0 && strcmp(stage_text(op->type), "proc") == 0) {
		mount_proc(op, target);
	} else {
		if (fchdir(target) != 0)
			fail_op(STEP_TARGET);
		if (mount(stage_text(op->source), ".", stage_text(op->type), op->mount_flags, options) != 0)
			fail_op(STEP_OPERATION);
	}
	close(target);
	note_proc(op);
}

static void take_again(struct stage_op *op, int user);

static void do_bind(struct stage_op *op)
{
	struct statx x;
	int target, directory;

	if (look(op->fd, &x) != 0)
		fail_op(STEP_SOURCE);
	directory = S_ISDIR(x.stx_mode);
	target = open_target(op);
	if (target < 0 && errno == ENOENT)
		target = reach(stage_text(op->target), !directory);
	if (target < 0)
		fail_op(STEP_TARGET);
	check_target(op, target, &x);
	if (S_ISDIR(x.stx_mode) != directory)
		fail_op_with(STEP_OPERATION, ENOTDIR);
	if (attach(op->fd, target) != 0) {
		if (errno != ELOOP || node_mounts < 0)
			fail_op(STEP_OPERATION);
		take_again(op, -1);
		if (attach(op->fd, target) != 0)
			fail_op(STEP_OPERATION);
	}
	close(target);
	if (op->propagation && propagate(op->fd, op->propagation) != 0)
		fail_op(STEP_ATTRIBUTES);
	close(op->fd);
	note_proc(op);
}

/* A node as it should be, whatever the image has at its place. */
static void do_device(const struct stage_op *op)
{
	const char *name;
	struct stat st;
	int dir, fd;

	dir = reach_parent(stage_text(op->target), &name);
	if (dir < 0)
		fail_op(STEP_TARGET);
	if (mknodat(dir, name, op->mode, makedev(op->major, op->minor)) != 0) {
		if (errno != EEXIST)
			fail_op(STEP_OPERATION);
		close(dir);
		return;
	}
	fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) != 0)
		fail_op(STEP_OPERATION);
	if ((st.st_mode & S_IFMT) != (op->mode & S_IFMT) ||
	    (!S_ISFIFO(st.st_mode) && st.st_rdev != makedev(op->major, op->minor)))
		fail_op_with(STEP_OPERATION, EBADF);
	if ((op->uid || op->gid) && fchownat(fd, "", op->uid, op->gid, AT_EMPTY_PATH) != 0)
		fail_op(STEP_OPERATION);
	close(fd);
	close(dir);
}

static void do_link(const struct stage_op *op)
{
	const char *name;
	int dir;

	dir = reach_parent(stage_text(op->target), &name);
	if (dir < 0)
		fail_op(STEP_TARGET);
	if (op->flags & OP_REPLACE && unlinkat(dir, name, 0) != 0 && errno != ENOENT)
		fail_op(STEP_OPERATION);
	if (symlinkat(stage_text(op->source), dir, name) != 0 && errno != EEXIST)
		fail_op(STEP_OPERATION);
	close(dir);
}

static void do_directory(const struct stage_op *op)
{
	int fd = open_in_root(stage_text(op->target), O_PATH, 0);

	/* ELOOP: a magic link. Whoever enters it is checked then. */
	if (fd < 0 && errno == ENOENT)
		fd = reach(stage_text(op->target), 0);
	if (fd < 0 && errno != ELOOP)
		fail_op(STEP_OPERATION);
	if (fd >= 0)
		close(fd);
}

static void do_protect(const struct stage_op *op)
{
	int target = open_in_root(stage_text(op->target), O_PATH, 0), tree;

	if (target < 0 && errno == ENOENT)
		return;
	if (target < 0)
		fail_op(STEP_TARGET);
	tree = clone_tree(target, "", AT_EMPTY_PATH | AT_RECURSIVE);
	if (tree < 0 || set_attributes(tree, 0, MOUNT_ATTR_RDONLY, 0, 0) != 0 || attach(tree, target) != 0)
		fail_op(STEP_OPERATION);
	close(tree);
	close(target);
}

/* The container's own, and no other file in its place. */
static int open_null(uint64_t flags)
{
	struct stat st;
	int fd = open_in_root("/dev/null", flags, 0);

	if (fd < 0)
		stage_fail(STEP_NULL);
	if (fstat(fd, &st) != 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(1, 3))
		stage_fail_at(STEP_NULL, EBADF, -1);
	return fd;
}

/* A directory in which nothing is and nothing can be made. */
static int make_void(const char *label)
{
	int fs, tree;

	fs = stage_call(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	if (fs < 0 || configure(fs, "source", "tmpfs") != 0 || configure(fs, "nr_blocks", "1") != 0 ||
	    configure(fs, "nr_inodes", "1") != 0 || configure(fs, "ro", NULL) != 0 ||
	    (*label && configure(fs, "context", label) != 0) ||
	    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
		fail_op(STEP_OPERATION);
	tree = stage_call(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY);
	if (tree < 0)
		fail_op(STEP_OPERATION);
	close(fs);
	return tree;
}

static int null = -1, empty = -1; /* what masks are made of */

static void do_mask(const struct stage_op *op)
{
	int target = open_in_root(stage_text(op->target), O_PATH, 0), tree;
	struct stat st;

	if (target < 0 && errno == ENOENT)
		return;
	if (target < 0 || fstat(target, &st) != 0)
		fail_op(STEP_TARGET);
	if (!S_ISDIR(st.st_mode)) {
		if (null < 0)
			null = open_null(O_PATH);
		tree = clone_tree(null, "", AT_EMPTY_PATH);
	} else if (empty < 0) {
		tree = empty = make_void(stage_text(op->data));
	} else {
		tree = clone_tree(empty, "", AT_EMPTY_PATH);
	}
	if (tree < 0 || attach(tree, target) != 0)
		fail_op(STEP_OPERATION);
	if (tree != empty)
		close(tree);
	close(target);
}

static void do_sysctl(const struct stage_op *op)
{
	struct open_how how = {
		.flags = O_WRONLY | O_TRUNC | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
	};
	const char *value = stage_text(op->data);
	struct statx x;
	ssize_t n;
	int proc, fd;

	proc = open_in_root("/proc/sys", O_PATH | O_DIRECTORY, RESOLVE_NO_SYMLINKS);
	if (proc < 0 || look(proc, &x) != 0)
		fail_op(STEP_TARGET);
	if (x.stx_mnt_id != proc_mount)
		fail_op_with(STEP_TARGET, EXDEV);
	fd = stage_call(SYS_openat2, proc, stage_text(op->source), &how, sizeof(how));
	if (fd < 0)
		fail_op(STEP_TARGET);
	n = write(fd, value, strlen(value));
	if (n < 0)
		fail_op(STEP_OPERATION);
	if ((size_t)n != strlen(value))
		fail_op_with(STEP_OPERATION, EIO);
	close(fd);
	close(proc);
}

static void do_change(const struct stage_op *op)
{
	int target = open_in_root(stage_text(op->target), O_PATH, 0);

	if (target < 0)
		fail_op(STEP_TARGET);
	if (op->kind == OP_PROPAGATE ? propagate(target, op->mount_flags) != 0
				     : set_attributes(target, 0, MOUNT_ATTR_RDONLY, 0, 0) != 0)
		fail_op(STEP_OPERATION);
	close(target);
}

static void do_label(const struct stage_op *op)
{
	const char *label = stage_text(op->data);
	int target = open_in_root(stage_text(op->target), O_RDONLY | O_DIRECTORY, RESOLVE_NO_SYMLINKS);

	if (target < 0)
		fail_op(STEP_TARGET);
	if (fsetxattr(target, "security.selinux", label, strlen(label), 0) != 0 && errno != ENOTSUP)
		fail_op(STEP_OPERATION);
	close(target);
}

static void forget_node(void)
{
	if (node_mounts >= 0)
		close(node_mounts);
	if (host_proc >= 0)
		close(host_proc);
	node_mounts = host_proc = -1;
}

static void do_pivot(void)
{
	int before = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	forget_node();
	if (before < 0 || fchdir(root) != 0 || syscall(SYS_pivot_root, ".", ".") != 0)
		stage_fail(STEP_ROOTFS);
	if (fchdir(before) != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
		stage_fail(STEP_ROOTFS);
	close(before);
}

static void operate(struct stage_op *op)
{
	int bad = 0;

	switch (op->kind) {
	case OP_MOUNT:
		do_mount(op);
		break;
	case OP_BIND:
		do_bind(op);
		break;
	case OP_PROPAGATE:
	case OP_READONLY:
		do_change(op);
		break;
	case OP_PROTECT:
		do_protect(op);
		break;
	case OP_MASK:
		do_mask(op);
		break;
	case OP_DEVICE:
		do_device(op);
		break;
	case OP_LINK:
		do_link(op);
		break;
	case OP_DIRECTORY:
		do_directory(op);
		break;
	case OP_SYSCTL:
		do_sysctl(op);
		break;
	case OP_HOSTNAME:
		bad = sethostname(stage_text(op->data), strlen(stage_text(op->data)));
		break;
	case OP_DOMAINNAME:
		bad = setdomainname(stage_text(op->data), strlen(stage_text(op->data)));
		break;
	case OP_PIVOT:
		do_pivot();
		break;
	case OP_TERMINAL:
		stage_make_terminal();
		break;
	case OP_ROOT_READONLY:
		bad = set_attributes(root, 0, MOUNT_ATTR_RDONLY, 0, 0);
		break;
	case OP_ROOT_PROPAGATE:
		bad = propagate(root, op->mount_flags);
		break;
	case OP_LABEL:
		do_label(op);
		break;
	default:
		fail_op_with(STEP_PLAN, EINVAL);
	}
	if (bad)
		fail_op(STEP_OPERATION);
}

/*
 * Mounts of the host have the propagation that is asked for in the container, whose own namespace begins with none
 * of them.
 */
static int part_from_host(int tree)
{
	uint64_t kind = stage_plan->root_propagation & ALL_PROPAGATION;

	return set_attributes(tree, AT_RECURSIVE, 0, 0, kind ? kind : MS_SLAVE);
}

/* The container's IDs are what the file system has. */
static void map_ids(const struct stage_op *op, int user)
{
	struct mount_attr a = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (__u64)user};
	unsigned int all = op->flags & OP_IDMAP_ALL ? AT_RECURSIVE : 0;

	if (syscall(SYS_mount_setattr, op->fd, "", AT_EMPTY_PATH | all, &a, sizeof(a)) != 0)
		fail_op(STEP_MAP_IDS);
}

#define TIMES (MOUNT_ATTR__ATIME | MOUNT_ATTR_NODIRATIME)

/*
 * In a user namespace a mount keeps what the host's has: that it is read-only, or has no devices. What must go fails,
 * as it would there.
 */
static void check_kept(const struct stage_op *op)
{
	static const struct {
		uint64_t attribute;
		long flag; /* statfs(2) has the numbers of mount(2) */
	} kept[] = {{MOUNT_ATTR_RDONLY, MS_RDONLY}, {MOUNT_ATTR_NOSUID, MS_NOSUID}, {MOUNT_ATTR_NODEV, MS_NODEV},
	    {MOUNT_ATTR_NOEXEC, MS_NOEXEC}};
	struct statfs fs;
	unsigned int i;

	if (fstatfs(op->fd, &fs) != 0)
		fail_op(STEP_ATTRIBUTES);
	for (i = 0; i < sizeof(kept) / sizeof(*kept); i++)
		if (op->must_clear & kept[i].attribute && fs.f_flags & kept[i].flag)
			fail_op_with(STEP_ATTRIBUTES, EPERM);
}

/* What is mounted, with its attributes. */
static void take_source(struct stage_op *op, int user)
{
	uint64_t clear = op->clear;

	op->fd = clone_tree(AT_FDCWD, stage_text(op->source), op->flags & OP_RECURSIVE ? AT_RECURSIVE : 0);
	if (op->fd < 0)
		fail_op(STEP_SOURCE);
	if (part_from_host(op->fd) != 0)
		fail_op(STEP_ATTRIBUTES);
	if (user >= 0) {
		check_kept(op);
		clear &= TIMES;
	}
	/* A mount of another user namespace keeps what it is locked to: only what was asked for has to go. */
	if ((op->set || clear) && set_attributes(op->fd, 0, op->set, clear, 0) != 0 &&
	    (errno != EPERM || set_attributes(op->fd, 0, op->set, op->must_clear, 0) != 0))
		fail_op(STEP_ATTRIBUTES);
	if ((op->set_all || op->clear_all) && set_attributes(op->fd, AT_RECURSIVE, op->set_all, op->clear_all, 0) != 0)
		fail_op(STEP_ATTRIBUTES);
	if (op->flags & OP_IDMAP)
		map_ids(op, user);
}

/*
 * The kernel attaches no mount that has a pin of an older mount namespace below it (ELOOP): snapd has such pins in /run,
 * and so has Berth. But in a copy of a whole mount namespace, the kernel leaves them out, so the source is taken from one.
 */
static void take_again(struct stage_op *op, int user)
{
	int before = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int here = openat(host_proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);

	close(op->fd);
	if (before < 0 || here < 0 || setns(node_mounts, CLONE_NEWNS) != 0 || unshare(CLONE_NEWNS) != 0)
		fail_op(STEP_SOURCE);
	take_source(op, user);
	/* The root is the one of the other namespace now. */
	if (setns(here, CLONE_NEWNS) != 0 || fchdir(before) != 0 || chroot(".") != 0)
		fail_op(STEP_SOURCE);
	close(here);
	close(before);
}

/* What take_again needs, if there is a source that may have a pin below it. */
static void remember_node(void)
{
	const struct stage_op *op = stage_at(stage_plan->operations.offset);
	uint32_t i;

	for (i = 0; i < stage_plan->operations.count; i++)
		if (op[i].kind == OP_BIND && (op[i].flags & (OP_RECURSIVE | OP_OWN)) == OP_RECURSIVE)
			break;
	if (i == stage_plan->operations.count)
		return;
	/* Without these, an attachment that needs them says that it has failed. */
	host_proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	node_mounts = openat(host_proc, "self/ns/mnt", O_RDONLY | O_CLOEXEC);
}

static int mounts_type(const char *type)
{
	const struct stage_op *op = stage_at(stage_plan->operations.offset);
	uint32_t i;

	for (i = 0; i < stage_plan->operations.count; i++)
		if (op[i].kind == OP_MOUNT && strcmp(stage_text(op[i].type), type) == 0)
			return 1;
	return 0;
}

int stage_mounts_proc(void) { return mounts_type("proc"); }

/*
 * Mounts of the host that go into a mount namespace which a user namespace owns pass through one that the host owns:
 * when the other is made as a copy of that, the kernel locks in each mount what the host has decided about it,
 * so that no root of the user namespace can take it back. They lie in a tmpfs meanwhile, by numbers.
 */
static int transit = -1;

static int put_into_transit(int tree, unsigned int number)
{
	char name[16];
	struct statx x;
	int bad;

	snprintf(name, sizeof(name), "%u", number);
	if (look(tree, &x) != 0)
		stage_fail(STEP_TRANSIT);
	bad = S_ISDIR(x.stx_mode) ? mkdirat(transit, name, 0755) : mknodat(transit, name, S_IFREG | 0644, 0);
	if (bad && errno != EEXIST)
		stage_fail(STEP_TRANSIT);
	if (syscall(SYS_move_mount, tree, "", transit, name, MOVE_MOUNT_F_EMPTY_PATH) != 0)
		return -1;
	close(tree);
	return 0;
}

static int take_from_transit(unsigned int number)
{
	char name[16];
	int tree;

	snprintf(name, sizeof(name), "%u", number);
	tree = clone_tree(AT_FDCWD, name, AT_RECURSIVE);
	if (tree < 0)
		stage_fail(STEP_TRANSIT);
	return tree;
}

static void make_transit(void)
{
	int fs = stage_call(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);

	if (fs < 0 || configure(fs, "mode", "0755") != 0 || syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0)
		stage_fail(STEP_TRANSIT);
	transit = stage_call(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	if (transit < 0 || syscall(SYS_move_mount, transit, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) != 0)
		stage_fail(STEP_TRANSIT);
	close(fs);
}

/* The kernel lets a user namespace mount a procfs or a sysfs only where one that hides nothing is mounted already. */
static const struct {
	const char *type, *path;
} whole[] = {{"proc", "/proc"}, {"sysfs", "/sys"}};

#define WHOLE (sizeof(whole) / sizeof(*whole))

static void pass_into_user_namespace(int user, const int *seen)
{
	struct stage_op *op = stage_at(stage_plan->operations.offset);
	uint32_t i, n = stage_plan->operations.count;
	int bad;

	if (unshare(CLONE_NEWNS) != 0)
		stage_fail(STEP_UNSHARE);
	make_transit();
	for (i = 0; i < n; i++)
		if (op[i].kind == OP_BIND && put_into_transit(op[i].fd, i) != 0) {
			current = (int)i;
			if (errno != ELOOP || node_mounts < 0)
				fail_op(STEP_TRANSIT);
			take_again(&op[i], user);
			if (put_into_transit(op[i].fd, i) != 0)
				fail_op(STEP_TRANSIT);
		}
	bad = put_into_transit(root, n);
	for (i = 0; i < WHOLE; i++)
		bad = bad || (seen[i] >= 0 && put_into_transit(seen[i], n + 1 + i) != 0);
	if (bad)
		stage_fail(STEP_TRANSIT);
	forget_node();
	/* The root that the pivot removes, with all that lies in it. */
	if (fchdir(transit) != 0 || chroot(".") != 0)
		stage_fail(STEP_TRANSIT);
	close(transit);
	stage_enter_user_namespace(user);
	if (unshare((int)stage_plan->namespaces) != 0)
		stage_fail(STEP_UNSHARE);
	for (i = 0; i < n; i++)
		if (op[i].kind == OP_BIND)
			op[i].fd = take_from_transit(i);
	root = take_from_transit(n);
}

/*
 * Sources and the root are cloned out of the host's mounts, and put together in a namespace that has next to none:
 * to copy all of the host's, and to remove them again, takes a time that grows with the number of its pods.
 */
void stage_leave_host(int user)
{
	struct stage_op *op = stage_at(stage_plan->operations.offset);
	int seen[WHOLE];
	uint32_t i;

	int node = stage_plan->flags & STAGE_NODE;

	root = clone_tree(AT_FDCWD, stage_text(stage_plan->root), AT_RECURSIVE);
	/* pivot_root needs one that does not propagate, and so does the host. */
	if (root < 0 || part_from_host(root) != 0 ||
	    set_attributes(root, 0, 0, 0, stage_plan->root_propagation & MS_SLAVE ? MS_SLAVE : MS_PRIVATE) != 0)
		stage_fail(STEP_ROOTFS);
	for (i = 0; i < stage_plan->operations.count; i++) {
		current = (int)i;
		if (op[i].kind == OP_BIND && (!node || op[i].flags & OP_OWN))
			take_source(&op[i], user);
	}
	/*
	 * The keeper's mounts are peers of the node's. But what is changed of the node's later, that one is read-only for
	 * instance, does not get to peers.
	 */
	if (node && setns(STAGE_FD_NODE, CLONE_NEWNS) != 0)
		stage_fail(STEP_UNSHARE);
	for (i = 0; node && i < stage_plan->operations.count; i++) {
		current = (int)i;
		if (op[i].kind == OP_BIND && !(op[i].flags & OP_OWN))
			take_source(&op[i], user);
	}
	if (node)
		stage_close(STAGE_FD_NODE, STEP_DESCRIPTORS);
	remember_node();
	for (i = 0; i < WHOLE; i++) {
		seen[i] = -1;
		if (user >= 0 && mounts_type(whole[i].type) && (seen[i] = clone_tree(AT_FDCWD, whole[i].path, 0)) < 0)
			stage_fail(STEP_TRANSIT);
	}
	if (setns(STAGE_FD_NAMESPACES, CLONE_NEWNS) != 0)
		stage_fail(STEP_UNSHARE);
	stage_close(STAGE_FD_NAMESPACES, STEP_DESCRIPTORS);
	if (user >= 0)
		pass_into_user_namespace(user, seen);
	else if (unshare((int)stage_plan->namespaces) != 0)
		stage_fail(STEP_UNSHARE);
	if (syscall(SYS_move_mount, root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) != 0)
		stage_fail(STEP_ROOTFS);
}

void stage_set_up_root(void)
{
	struct stage_op *op = stage_at(stage_plan->operations.offset);
	uint32_t i;

	for (i = 0; i < stage_plan->operations.count; i++) {
		current = (int)i;
		operate(&op[i]);
	}
	if (chdir("/") != 0)
		stage_fail(STEP_ROOTFS);
}

void stage_mount_console(int terminal)
{
	int target, tree;

	target = open_in_root("/dev/console", O_PATH, RESOLVE_NO_SYMLINKS);
	if (target < 0 && errno == ENOENT)
		target = reach("/dev/console", 1);
	if (target < 0)
		stage_fail(STEP_TERMINAL);
	tree = clone_tree(terminal, "", AT_EMPTY_PATH);
	if (tree < 0 || attach(tree, target) != 0)
		stage_fail(STEP_TERMINAL);
	close(tree);
	close(target);
}

void stage_reopen_null(void)
{
	struct stat st;
	int fd, own = -1;

	for (fd = 0; fd < 3; fd++) {
		if (fstat(fd, &st) != 0)
			stage_fail(STEP_STDIO);
		if (!S_ISCHR(st.st_mode) || st.st_rdev != makedev(1, 3))
			continue;
		if (own < 0)
			own = open_null(O_RDWR);
		if (dup2(own, fd) < 0)
			stage_fail(STEP_STDIO);
	}
	if (own >= 0)
		close(own);
}

void stage_close_root(void)
{
	if (null >= 0)
		stage_close(null, STEP_DESCRIPTORS);
	if (empty >= 0)
		stage_close(empty, STEP_DESCRIPTORS);
	stage_close(root, STEP_DESCRIPTORS);
}
