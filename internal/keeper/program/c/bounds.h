/*
 * What _FORTIFY_SOURCE is in glibc, and musl does not have: a call that would write beyond what it is given to write
 * to ends the program. packaging/build.sh includes this into each file of the program.
 */
#ifndef BERTH_BOUNDS_H
#define BERTH_BOUNDS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Bytes that are known to be at p, of the member alone where p is one; as many as there are where nothing is known. */
#define bounds_room(p) __builtin_dynamic_object_size((p), 1)

static inline size_t bounds_fit(size_t n, size_t room)
{
	if (n > room)
		__builtin_trap();
	return n;
}

#define memcpy(to, from, n) (memcpy)((to), (from), bounds_fit((n), bounds_room(to)))
#define memmove(to, from, n) (memmove)((to), (from), bounds_fit((n), bounds_room(to)))
#define memset(to, byte, n) (memset)((to), (byte), bounds_fit((n), bounds_room(to)))
#define strcpy(to, from) ((void)bounds_fit(strlen(from) + 1, bounds_room(to)), (strcpy)((to), (from)))
#define snprintf(to, n, ...) (snprintf)((to), bounds_fit((n), bounds_room(to)), __VA_ARGS__)
#define read(fd, to, n) (read)((fd), (to), bounds_fit((n), bounds_room(to)))
#define readlinkat(dir, path, to, n) (readlinkat)((dir), (path), (to), bounds_fit((n), bounds_room(to)))

#endif
