package main

// int80 makes a system call by the numbers of 32-bit programs: 20 is getpid there, and writev in the other list.
func int80()
