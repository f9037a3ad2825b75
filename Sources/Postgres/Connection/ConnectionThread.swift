import Glibc
import Synchronization

/// A thread that runs the jobs of one actor and may block, so that waiting for PostgreSQL never blocks a thread of the
/// cooperative pool. Tasks that prefer this executor run here too, between the actor's jobs.
final class ConnectionThread: SerialExecutor, TaskExecutor {
    enum WaitResult {
        /// The socket can be read or written, or has failed.
        case ready
        /// ``wake()`` was called, or a signal arrived; there may be nothing to do.
        case woken
        case timedOut
    }

    private struct Queue {
        var jobs: [UnownedJob] = []
        var isStopped = false
    }

    private let queue = Mutex(Queue())
    private let wakeup: WakeupPipe

    init() throws(PostgresError) {
        wakeup = try WakeupPipe()
        guard startThread({ self.work() }) else {
            throw PostgresError(.connectionFailed, "no thread could be started for a connection; raise `ulimit -u`")
        }
    }

    /// Lets the thread end after the jobs that are queued.
    func stop() {
        queue.withLock { $0.isStopped = true }
        wake()
    }

    /// Ends a wait of the thread. Callable from any thread.
    func wake() {
        wakeup.signal()
    }

    func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        queue.withLock { $0.jobs.append(job) }
        wake()
    }

    func asUnownedSerialExecutor() -> UnownedSerialExecutor {
        // Valid for as long as the actor that owns this thread refers to it.
        unsafe UnownedSerialExecutor(ordinary: self)
    }

    /// Blocks this thread until a socket is ready for `events`, ``wake()`` is called, or `deadline` has passed.
    /// A negative socket is never ready.
    func wait(_ socket: Int32, _ events: Int32, until deadline: ContinuousClock.Instant?) -> WaitResult {
        // `poll` gets exactly the two descriptors that the allocation holds, both initialized.
        unsafe withUnsafeTemporaryAllocation(of: pollfd.self, capacity: 2) { descriptors in
            unsafe descriptors.initialize(repeating: pollfd(fd: wakeup.descriptor, events: Int16(POLLIN), revents: 0))
            unsafe descriptors[1] = pollfd(fd: socket, events: Int16(events), revents: 0)
            let ready = unsafe poll(descriptors.baseAddress, 2, Self.milliseconds(until: deadline))
            guard ready != 0 else { return .timedOut }
            // Interrupted by a signal: the caller has to check everything again.
            guard ready > 0 else { return .woken }
            if unsafe descriptors[0].revents != 0 { wakeup.drain() }
            return unsafe descriptors[1].revents != 0 ? .ready : .woken
        }
    }

    // MARK: - Private parts

    private func work() {
        // Both references are used on this thread only, which keeps this object alive.
        let executor = unsafe asUnownedSerialExecutor()
        let taskExecutor = unsafe asUnownedTaskExecutor()
        while let job = nextJob() {
            unsafe job.runSynchronously(isolatedTo: executor, taskExecutor: taskExecutor)
        }
    }

    /// Waits for the next job; nil when the thread must end.
    private func nextJob() -> UnownedJob? {
        while true {
            let (job, isStopped): (UnownedJob?, Bool) = queue.withLock { queue in
                (queue.jobs.isEmpty ? nil : queue.jobs.removeFirst(), queue.isStopped)
            }
            if let job { return job }
            if isStopped { return nil }
            // A wakeup that arrives after the check of the queue stays in the pipe, so the wait ends immediately.
            _ = wait(-1, 0, until: nil)
        }
    }

    /// Whole milliseconds for `poll`, rounded up so that a wait never ends early; -1 waits without a limit.
    private static func milliseconds(until deadline: ContinuousClock.Instant?) -> Int32 {
        guard let deadline else { return -1 }
        let left = ContinuousClock.now.duration(to: deadline)
        guard left > .zero else { return 0 }
        return Int32(clamping: left.milliseconds + 1)
    }
}

/// A pipe that wakes one waiting thread: the thread polls it together with its socket, and any thread can signal it.
private struct WakeupPipe: ~Copyable {
    let descriptor: Int32
    private let sender: Int32

    init() throws(PostgresError) {
        var ends: [Int32] = [-1, -1]
        // `pipe` writes two integers, and the array holds two.
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

    func signal() {
        var byte: UInt8 = 1
        // Reads the one byte of a local variable. Fails only when the pipe is full, and then it is signalled already.
        _ = unsafe write(sender, &byte, 1)
    }

    /// Forgets all signals so far.
    func drain() {
        // `read` writes at most the 64 bytes that the allocation holds.
        unsafe withUnsafeTemporaryAllocation(byteCount: 64, alignment: 1) { bytes in
            while unsafe read(descriptor, bytes.baseAddress, 64) == 64 {}
        }
    }
}

/// Runs `body` on a detached thread; false if the system cannot start one.
func startThread(_ body: @escaping @Sendable () -> Void) -> Bool {
    final class Box {
        let body: @Sendable () -> Void
        init(_ body: @escaping @Sendable () -> Void) { self.body = body }
    }
    // The attributes are initialized before use and destroyed once; the box is released once, by the thread or, if none
    // was started, here.
    var attributes = pthread_attr_t()
    unsafe pthread_attr_init(&attributes)
    defer { unsafe pthread_attr_destroy(&attributes) }
    unsafe pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
    // Decoding rows needs little stack; name resolution in the C library needs more.
    unsafe pthread_attr_setstacksize(&attributes, 1 << 20)
    let box = unsafe Unmanaged.passRetained(Box(body))
    var thread = pthread_t()
    let result = unsafe pthread_create(
        &thread,
        &attributes,
        { argument in
            guard let argument = unsafe argument else { return nil }
            unsafe Unmanaged<Box>.fromOpaque(argument).takeRetainedValue().body()
            return nil
        },
        box.toOpaque()
    )
    if result != 0 { unsafe box.release() }
    return result == 0
}

extension Duration {
    /// Whole milliseconds, towards zero.
    var milliseconds: Int64 {
        components.seconds * 1000 + components.attoseconds / 1_000_000_000_000_000
    }
}
