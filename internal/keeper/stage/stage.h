/* The plan that the keeper writes (plan.go) and the stage maps. All offsets are from the start of the plan. */
#ifndef BERTH_STAGE_H
#define BERTH_STAGE_H

#include <stdint.h>

#define STAGE_NAME "berth-stage"
#define STAGE_PATH "/proc/self/fd/3"
#define STAGE_MAGIC 0x62657274u
/* The exit code of a stage whose keeper has gone before it let the program begin. A program may end with it too. */
#define STAGE_ABANDONED 121
/*
 * What a container's init process writes over the only byte of a file of the keeper's, when it has been let go on and
 * before it becomes the program. The file outlives both processes: whoever comes after the keeper reads there whether
 * the program may have run.
 */
#define STAGE_WAITS "0"
#define STAGE_BEGUN "1"

/*
 * Descriptors that a stage is started with, after the three standard ones. One that the keeper itself has started,
 * to join a container or to be its init process, has all; the last stage of what libcontainer has set up has the first
 * three.
 */
enum {
	STAGE_FD_EXE = 3, /* what it is executed from */
	STAGE_FD_PLAN,
	/* a socket: reports to the keeper, and the byte by which it lets the program begin. Of a last stage, a pipe */
	STAGE_FD_KEEPER,
	STAGE_FD_CONSOLE,    /* where a terminal's master goes; without one the stage closes it */
	STAGE_FD_NAMESPACES, /* of an exec: a pidfd of the init process; of an init process: an empty mount namespace */
	STAGE_FD_MARK,       /* of an init process with STAGE_MARK: where it says that its program begins; else it is closed */
	STAGE_FD_NODE,       /* of an init process with STAGE_NODE: the node's mount namespace; else it is closed */
	/* the first file by which it joins a cgroup (tasks). With STAGE_CLONE a directory of version 2 follows the last. */
	STAGE_FD_CGROUPS,
};

enum {
	STAGE_JOIN = 1 << 0,
	STAGE_NO_NEW_PRIVS = 1 << 1,
	STAGE_UMASK = 1 << 2,
	STAGE_OOM_SCORE = 1 << 3,
	STAGE_KEYRING = 1 << 4,
	STAGE_HOME = 1 << 5, /* look HOME up and put it into the last place of the environment */
	STAGE_TERMINAL = 1 << 6,
	STAGE_CAPABILITIES = 1 << 7,
	STAGE_BEGIN = 1 << 8,           /* a container's init process, set up from nothing */
	STAGE_WAIT = 1 << 9,           /* another process moves it into its cgroup, and then lets it go on */
	STAGE_REOPEN_NULL = 1 << 10,    /* the container has a /dev of its own */
	STAGE_SELINUX = 1 << 11,        /* the confinement is an SELinux label, not what AppArmor reads */
	STAGE_FORK = 1 << 12,           /* it enters a PID namespace that has other processes, which only a child can */
	/* it makes a PID namespace in its user namespace: a child is the first process there */
	STAGE_FORK_EARLY = 1 << 13,
	STAGE_FILTER_EARLY = 1 << 14,   /* the filter lets a process do all that is left after STAGE_FORK */
	STAGE_MARK = 1 << 15,           /* it writes STAGE_BEGUN before it runs the program */
	STAGE_NODE = 1 << 16,           /* sources without OP_OWN are the node's, and not the keeper's */
	STAGE_CLONE = 1 << 17,          /* a child of it, in a cgroup of version 2, does all that is left */
	STAGE_CGROUP_NAMESPACE = 1 << 18, /* an exec has a cgroup namespace of its own */
};

/* What a report is about: a number, the end of the set-up, or the step that failed. */
enum {
	STEP_PID = 0, /* no failure: the number of the child, which is the container's process */
	STEP_READY,   /* no failure: all is set up, and it waits */
	STEP_PLAN,
	STEP_CGROUP,
	STEP_OOM_SCORE,
	STEP_RLIMIT,
	STEP_NAMESPACE,
	STEP_FORK,
	STEP_ROOT,
	STEP_CONFINE_OPEN,
	STEP_KEYRING,
	STEP_TERMINAL,
	STEP_NO_NEW_PRIVS,
	STEP_DESCRIPTORS,
	STEP_CWD,
	STEP_CWD_OUTSIDE,
	STEP_BOUNDING,
	STEP_STDIO,
	STEP_GROUPS,
	STEP_GID,
	STEP_UID,
	STEP_CAPABILITIES,
	STEP_CONFINE,
	STEP_SECCOMP,
	STEP_LOOKUP,          /* of a program by PATH */
	STEP_LOOKUP_RELATIVE, /* found relative to the working directory */
	STEP_STAT,            /* of a program by its own path */
	STEP_EXEC,
	STEP_UNSHARE,     /* make namespaces */
	STEP_ROOTFS,      /* make the root file system a mount, and that the root */
	STEP_JOIN,        /* a namespace; operation is its place in the list */
	STEP_SOURCE,      /* find what an operation mounts */
	STEP_ATTRIBUTES,  /* of what an operation mounts */
	STEP_MAP_IDS,     /* of what an operation mounts */
	STEP_TARGET,      /* find or make an operation's target */
	STEP_FORBIDDEN,   /* the target is the root, or in /proc */
	STEP_OPERATION,
	STEP_NULL,        /* the container's /dev/null is something else */
	STEP_LABEL,       /* of the session keyring */
	STEP_USER,        /* enter the user namespace */
	STEP_TRANSIT,     /* bring mounts into the user namespace */
	STEP_PROC,        /* have a procfs made of another PID namespace */
	STEP_DUMPABLE,    /* keep others from reading this process */
	STEP_AWAIT,       /* wait for the keeper */
	STEP_MARK,        /* say that the program is about to begin */
};

enum {
	OP_MOUNT = 1,     /* a new file system */
	OP_BIND,          /* source, with all below it if OP_RECURSIVE */
	OP_PROPAGATE,     /* of what is mounted at target */
	OP_READONLY,      /* what is mounted at target */
	OP_PROTECT,       /* target is mounted on itself, read-only; not if it does not exist */
	/* nothing is seen at target; not if it does not exist. data: the SELinux label of an empty directory */
	OP_MASK,
	OP_DEVICE,        /* a node */
	OP_LINK,          /* symbolic, from target to source */
	OP_DIRECTORY,     /* with its parents, unless something is there */
	OP_SYSCTL,        /* data into the file source below /proc/sys */
	OP_HOSTNAME,      /* data */
	OP_DOMAINNAME,    /* data */
	OP_PIVOT,         /* the root becomes that of this process */
	OP_TERMINAL,      /* made, and mounted on /dev/console */
	OP_ROOT_READONLY,
	OP_ROOT_PROPAGATE,
	OP_LABEL,         /* target gets the SELinux label data */
};

enum {
	OP_RECURSIVE = 1 << 0,
	OP_PLAIN_TARGET = 1 << 1, /* no symbolic link leads there (proc, sysfs) */
	OP_COPY_MODE = 1 << 2,    /* of the directory that a tmpfs covers */
	OP_IS_PROC = 1 << 3,      /* the target is /proc: only a procfs may be mounted there */
	OP_IN_PROC = 1 << 4,      /* the target may be in it */
	OP_REPLACE = 1 << 5,      /* a link's target is removed first */
	OP_IDMAP = 1 << 6,        /* a bind with the IDs of the user namespace */
	OP_IDMAP_ALL = 1 << 7,    /* the same for all its mounts */
	OP_OWN = 1 << 8,          /* the source is Berth's own: see STAGE_NODE */
};

/* What an init process does in its new root, one after the other. */
struct stage_op {
	uint32_t kind, flags;
	uint32_t source, target, type, data; /* offsets of strings; 0: none */
	uint64_t mount_flags;                /* MS_*: of a new file system; of a propagation */
	uint64_t set, clear;                 /* MOUNT_ATTR_* of a bind; set also of a procfs */
	uint64_t must_clear;                 /* those of clear that were asked for, and not only follow from set */
	uint64_t set_all, clear_all;         /* of all its mounts */
	uint64_t propagation;                /* of a bind: MS_*, 0: as it is */
	uint32_t mode, uid, gid, major, minor;
	int32_t fd; /* of the source, until it is mounted */
};

struct stage_namespace {
	uint32_t type, path; /* CLONE_NEW*, offset */
};

struct stage_limit {
	uint32_t resource, unused;
	uint64_t soft, hard;
};

struct stage_list {
	uint32_t count, offset;
};

struct stage_plan {
	uint32_t magic, size;
	uint32_t flags, namespaces;
	uint32_t uid, gid;
	uint32_t umask;
	int32_t oom_score;
	uint64_t bounding, effective, inheritable, permitted, ambient;
	uint32_t last_capability, seccomp_flags;
	uint32_t rows, columns;      /* of a terminal; 0: as the kernel has it */
	struct stage_list cgroups;   /* only counted */
	struct stage_list groups;    /* uint32_t */
	struct stage_list limits;    /* struct stage_limit */
	struct stage_list filter;    /* struct sock_filter */
	struct stage_list args, env; /* uint32_t offsets of strings */
	uint32_t cwd, path, keyring, confinement; /* offsets of strings; 0: none */

	/* Of an init process. Namespaces, above, are those that it makes. */
	struct stage_list joins;      /* struct stage_namespace: of others */
	struct stage_list operations; /* struct stage_op */
	uint32_t root, root_propagation;
	uint32_t keyring_right; /* added to those to the session keyring */
	uint32_t user;          /* offset of the path of the user namespace; 0: the host's */
	uint32_t born;          /* namespaces (CLONE_NEW*) that STAGE_CLONE's child is created in */
	uint32_t keyring_uid;   /* user of the session keyring; 0: the container's root. An exec's too */

	/*
	 * struct sock_filter: with STAGE_FORK and without STAGE_FILTER_EARLY, a filter that is loaded before the fork. It
	 * lets through what the other filter does, and what is left to be done.
	 */
	struct stage_list wider;
};

struct stage_status {
	int32_t step, value; /* errno, or the process's number */
	int32_t operation;   /* that failed, from 0; -1: none */
};

#endif
