/* What the parts of the stage share. */
#ifndef BERTH_STAGE_INNER_H
#define BERTH_STAGE_INNER_H

#include <sys/syscall.h>
#include <unistd.h>

#include "stage.h"

extern struct stage_plan *stage_plan;

void __attribute__((noreturn)) stage_end(int code);
void stage_say(int step, int value);
void __attribute__((noreturn)) stage_fail_at(int step, int error, int operation);
void __attribute__((noreturn)) stage_fail(int step);

/* A descriptor that stays open is one that the program gets. */
void stage_close(int fd, int step);

/* A system call that gives a descriptor, or says whether it has failed. */
#define stage_call(...) ((int)syscall(__VA_ARGS__))

static inline void *stage_at(uint32_t offset) { return (char *)stage_plan + offset; }

/* The last byte of the plan is 0 and stays so: each string ends inside. */
static inline const char *stage_text(uint64_t offset)
{
	if (offset >= stage_plan->size)
		stage_fail(STEP_PLAN);
	return offset ? stage_at((uint32_t)offset) : "";
}

/* stage.c */
/* stage_main, if these are the arguments of a stage. */
void berth_stage(int argc, char **argv);
/* All of it: descriptors are where stage.h says. It does not return. */
void stage_main(void);
/* The user namespace whose descriptor this is, with all rights in it. */
void stage_enter_user_namespace(int user);
void stage_keep_capabilities(uint64_t set);

/* setup.c */
/* With user, the descriptor of a user namespace that is entered meanwhile; -1: none. */
void stage_leave_host(int user);
void stage_set_up_root(void);
/* The terminal is /dev/console too. */
void stage_mount_console(int terminal);
void stage_make_terminal(void);
void stage_reopen_null(void);
/* No directory is open from here on. */
void stage_close_root(void);
/* Whether a procfs is mounted. */
int stage_mounts_proc(void);

/* proc.c */
/* A context (fsopen(2)) for a procfs that shows the PID namespace whose descriptor this is. */
int stage_open_proc(int pid_namespace);
/* Where stage_open_proc has left it; -1: a procfs shows the PID namespace of this process. */
extern int stage_proc;

#endif
