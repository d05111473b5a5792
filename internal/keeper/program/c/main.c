/* All that this program does, constructors do that know the name it is started under. */
int main(void) { return 127; }
