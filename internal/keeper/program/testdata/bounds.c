/* Each call writes a byte more than there is room for, or as many: bounds CALL LENGTH. */
#include "../c/bounds.h"

#include <fcntl.h>
#include <stdlib.h>

static struct {
	char to[8];
	char next[64];
} both;

int main(int argc, char **argv)
{
	static char from[64] = "0123456789abcdef";
	const char *call = argv[1];
	size_t n = argc == 3 ? (size_t)atoi(argv[2]) : 0;
	char local[8], *heap = malloc(8);

	if (strcmp(call, "memcpy") == 0)
		memcpy(both.to, from, n);
	else if (strcmp(call, "memmove") == 0)
		memmove(local, from, n);
	else if (strcmp(call, "memset") == 0)
		memset(heap, 1, n);
	else if (strcmp(call, "strcpy") == 0)
		strcpy(both.to, from + 17 - n);
	else if (strcmp(call, "snprintf") == 0)
		snprintf(both.to, n, "%s", from);
	else if (strcmp(call, "read") == 0)
		read(open("/dev/zero", O_RDONLY), both.to, n);
	else if (strcmp(call, "readlinkat") == 0)
		readlinkat(AT_FDCWD, "/proc/self/exe", local, n);
	else
		return 2;
	return local[0] == 'x' && heap[0] == 'x';
}
