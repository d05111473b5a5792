/*
 * Compilers do not record macros and headers: that those which protect are there is checked here, with what they stand
 * beside.
 */
#if !defined(BERTH_BOUNDS_H) || !defined(__OPTIMIZE__) || !defined(__SSP_STRONG__) || !defined(__PIE__) || \
    (defined(__x86_64__) && !defined(__CET__)) || (defined(__aarch64__) && !defined(__ARM_FEATURE_PAC_DEFAULT))
#error "compiled without the protections of packaging/build.sh"
#endif

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

void berth_stage(int argc, char **argv);
void berth_podinit(int argc, char **argv);
void berth_proxy(int argc, char **argv);

extern const ElfW(Ehdr) __ehdr_start;

/*
 * What has been relocated is written no more. The loader of dynamic programs does this, and glibc does in static ones;
 * musl does not.
 */
static void seal(void)
{
	const char *base = (const char *)&__ehdr_start;
	const ElfW(Phdr) *part = (const void *)(base + __ehdr_start.e_phoff);
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	for (int i = 0; i < __ehdr_start.e_phnum; i++, part++) {
		if (part->p_type != PT_GNU_RELRO)
			continue;
		uintptr_t from = (uintptr_t)(base + part->p_vaddr) & -page,
		    to = (uintptr_t)(base + part->p_vaddr + part->p_memsz) & -page;

		if (mprotect((void *)from, to - from, PROT_READ) != 0)
			_exit(127);
	}
}

/* Each knows the name that it is started under, and does not return then. */
int main(int argc, char **argv)
{
	seal();
	berth_stage(argc, argv);
	berth_podinit(argc, argv);
	berth_proxy(argc, argv);
	return 127;
}
