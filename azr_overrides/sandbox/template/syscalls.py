"""Which system calls a confined program may make, by name. Both filter compilers read this table."""

import errno
import os

ANSWER_FD = 3  # a child writes its answer there

_ALLOWED_NAMES = """
read close fstat lseek mmap munmap mremap mprotect madvise brk rt_sigaction rt_sigprocmask
rt_sigreturn sigaltstack pread64 readv futex exit exit_group restart_syscall sched_yield
sched_getaffinity getpid gettid getppid getuid geteuid getgid getegid getcwd getrandom getrusage
times uname sysinfo clock_gettime clock_getres gettimeofday time stat lstat newfstatat statx access
faccessat faccessat2 readlink readlinkat getdents64 set_robust_list rseq
"""
ALLOWED = tuple(_ALLOWED_NAMES.split())
# A program that asks for one of these is not a function of its arguments: it is killed rather than refused.
_KILLED_NAMES = """
socket socketpair connect bind listen accept accept4 fork vfork clone clone3 execve execveat kill
tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo ptrace process_vm_readv process_vm_writev
process_madvise pidfd_open pidfd_getfd pidfd_send_signal bpf perf_event_open userfaultfd
io_uring_setup unshare setns mount umount2 pivot_root chroot keyctl add_key request_key init_module
finit_module kexec_load reboot shmget semget msgget mq_open memfd_create setuid setgid setreuid
setregid setresuid setresgid
"""
KILLED = tuple(_KILLED_NAMES.split())
WRITES_TO_DESCRIPTOR = ("write", "writev")  # allowed to descriptors up to ANSWER_FD
OPENS_READ_ONLY = "openat"  # where landlock decides which files, reading is allowed
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | (os.O_TMPFILE & ~os.O_DIRECTORY)
# Everything else fails with EPERM, except where the standard library expects another refusal.
REFUSED = {"ioctl": errno.ENOTTY}
