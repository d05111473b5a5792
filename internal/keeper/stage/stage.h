/* The plan that the keeper writes (plan.go) and the stage maps. All offsets are from the start of the plan. */
#ifndef BERTH_STAGE_H
#define BERTH_STAGE_H

#include <stdint.h>

#define STAGE_NAME "berth-stage"
#define STAGE_PATH "/proc/self/fd/3"
#define STAGE_MAGIC 0x62657274u

/* Descriptors that a stage is started with, after the three standard ones. A joining stage has all. */
enum {
	STAGE_FD_EXE = 3, /* what it is executed from */
	STAGE_FD_PLAN,
	STAGE_FD_STATUS,
	STAGE_FD_PIDFD,   /* the container's first process */
	STAGE_FD_CONSOLE, /* where a terminal's master goes; /dev/null without one */
	STAGE_FD_CGROUPS, /* the first tasks file */
};

enum {
	STAGE_JOIN = 1 << 0,
	STAGE_NO_NEW_PRIVS = 1 << 1,
	STAGE_USERNS = 1 << 2,
	STAGE_UMASK = 1 << 3,
	STAGE_OOM_SCORE = 1 << 4,
	STAGE_KEYRING = 1 << 5,
	STAGE_HOME = 1 << 6, /* look HOME up and put it into the last place of the environment */
	STAGE_TERMINAL = 1 << 7,
	STAGE_CAPABILITIES = 1 << 8,
};

/* How far it came: the step that failed. */
enum {
	STEP_PID = 0, /* no failure: the process's number */
	STEP_PLAN,
	STEP_CGROUP,
	STEP_OOM_SCORE,
	STEP_RLIMIT,
	STEP_NAMESPACE,
	STEP_FORK,
	STEP_ROOT,
	STEP_APPARMOR_OPEN,
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
	STEP_APPARMOR,
	STEP_SECCOMP,
	STEP_LOOKUP,          /* of a program by PATH */
	STEP_LOOKUP_RELATIVE, /* found relative to the working directory */
	STEP_STAT,            /* of a program by its own path */
	STEP_EXEC,
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
	uint32_t cwd, path, keyring, apparmor; /* offsets of strings; 0: none */
};

struct stage_status {
	int32_t step, value; /* errno, or the process's number */
};

#endif
