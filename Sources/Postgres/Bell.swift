import Glibc

/// A pipe that one thread waits on and any thread rings: it ends waiting for a job and waiting for a socket alike.
struct Bell: ~Copyable {
    /// What to poll for reading.
    let descriptor: Int32
    private let sender: Int32

    init() throws(PostgresError) {
        var ends: [Int32] = [-1, -1]
        guard unsafe pipe(&ends) == 0 else {
            throw PostgresError(.connectionFailed, "no file descriptor left for a connection; raise `ulimit -n`")
        }
        for end in ends {
            _ = fcntl(end, F_SETFD, FD_CLOEXEC)
            _ = fcntl(end, F_SETFL, O_NONBLOCK)
        }
        descriptor = ends[0]
        sender = ends[1]
    }

    deinit {
        close(descriptor)
        close(sender)
    }

    /// Ends the wait, from any thread.
    func ring() {
        var byte: UInt8 = 1
        // Fails only when the pipe is full, and then it is ringing already.
        _ = unsafe write(sender, &byte, 1)
    }

    /// Forgets all ringing so far.
    func silence() {
        unsafe withUnsafeTemporaryAllocation(byteCount: 64, alignment: 1) { bytes in
            while unsafe read(descriptor, bytes.baseAddress, 64) == 64 {}
        }
    }
}
