/* Compilers do not record macros: what FORTIFY_SOURCE needs is checked here, with what it stands beside. */
#if !defined(_FORTIFY_SOURCE) || !defined(__OPTIMIZE__) || !defined(__SSP_STRONG__) || !defined(__PIE__) || (defined(__x86_64__) && !defined(__CET__))
#error "compiled without the protections of packaging/build.sh"
#endif

/* All that this program does, constructors do that know the name it is started under. */
int main(void) { return 127; }
