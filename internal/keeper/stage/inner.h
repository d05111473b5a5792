/* What the parts of the stage share. */
#ifndef BERTH_STAGE_INNER_H
#define BERTH_STAGE_INNER_H

#include "stage.h"

extern struct stage_plan *stage_plan;

static inline void *stage_at(uint32_t offset) { return (char *)stage_plan + offset; }
static inline const char *stage_text(uint32_t offset) { return offset ? stage_at(offset) : ""; }

void stage_say(int step, int value);
void __attribute__((noreturn)) stage_fail_at(int step, int error, int operation);
void __attribute__((noreturn)) stage_fail(int step);

/* setup.c */
void stage_leave_host(void);
void stage_set_up_root(void);
/* The terminal is /dev/console too. */
void stage_mount_console(int terminal);
void stage_make_terminal(void);
void stage_reopen_null(void);
/* No directory is open from here on. */
void stage_close_root(void);

#endif
