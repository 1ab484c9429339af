# tried: makes a 32-bit system call, which a filter for 64-bit calls would not see
# wall: seccomp ends whoever calls through another ABI
# wall-gvisor: gVisor's kernel knows one ABI
# control: room
import mmap
# mov eax, 20 (getpid); int 0x80; ret
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")


def knock():
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    os._exit(7 if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0 else 8)


_, status = os.waitpid(child(knock), 0)
report(os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7, f"status {status}")
