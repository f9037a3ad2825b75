import Glibc
import Synchronization

/// A thread that runs the jobs of one actor and may block, so that waiting for PostgreSQL never holds up a thread of the
/// cooperative pool. Tasks that prefer it run there too, between the actor's jobs and as isolated as they are.
final class ConnectionThread: SerialExecutor, TaskExecutor {
    /// Why a wait ended.
    enum Wakening {
        /// The socket can be read or written, or has failed.
        case ready
        /// Somebody called ``wake()``; there may be nothing to do.
        case woken
        /// The time is up.
        case timedOut
    }

    private struct Queue {
        var jobs: [UnownedJob] = []
        var isStopped = false
    }

    private let queue = Mutex(Queue())
    private let bell: Bell

    /// Starts the thread.
    init() throws(PostgresError) {
        bell = try Bell()
        guard startThread({ self.work() }) else {
            throw PostgresError(.connectionFailed, "no thread could be started for a connection; raise `ulimit -u`")
        }
    }

    /// Lets the thread end after the jobs that it has.
    func stop() {
        queue.withLock { $0.isStopped = true }
        wake()
    }

    /// Ends a wait of the thread, from any thread.
    func wake() {
        bell.ring()
    }

    /// Takes a job of the actor, or of a task.
    func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        queue.withLock { $0.jobs.append(job) }
        wake()
    }

    /// The executor as the runtime wants it.
    func asUnownedSerialExecutor() -> UnownedSerialExecutor {
        unsafe UnownedSerialExecutor(ordinary: self)
    }

    /// Blocks this thread until a socket is ready for `events`, somebody calls ``wake()``, or `deadline` has passed.
    /// A negative socket is never ready.
    func wait(_ socket: Int32, _ events: Int32, until deadline: ContinuousClock.Instant?) -> Wakening {
        unsafe withUnsafeTemporaryAllocation(of: pollfd.self, capacity: 2) { descriptors in
            unsafe descriptors.initialize(repeating: pollfd(fd: bell.descriptor, events: Int16(POLLIN), revents: 0))
            unsafe descriptors[1] = pollfd(fd: socket, events: Int16(events), revents: 0)
            let ready = unsafe poll(descriptors.baseAddress, 2, Self.milliseconds(until: deadline))
            guard ready != 0 else { return .timedOut }
            // Interrupted by a signal: nothing is known, so the caller looks at everything again.
            guard ready > 0 else { return .woken }
            if unsafe descriptors[0].revents != 0 { bell.silence() }
            return unsafe descriptors[1].revents != 0 ? .ready : .woken
        }
    }

    // MARK: - Private parts

    private func work() {
        let executor = unsafe asUnownedSerialExecutor()
        let taskExecutor = unsafe asUnownedTaskExecutor()
        while let job = nextJob() {
            unsafe job.runSynchronously(isolatedTo: executor, taskExecutor: taskExecutor)
        }
    }

    /// The next job, waited for; nil when the thread shall end.
    private func nextJob() -> UnownedJob? {
        while true {
            let (job, isStopped): (UnownedJob?, Bool) = queue.withLock { queue in
                (queue.jobs.isEmpty ? nil : queue.jobs.removeFirst(), queue.isStopped)
            }
            if let job { return job }
            if isStopped { return nil }
            // Rung after the look into the queue: the bell stays rung, and the wait ends at once.
            _ = wait(-1, 0, until: nil)
        }
    }

    /// Whole milliseconds for `poll`, rounded up so that a wait never ends early; -1 is for ever.
    private static func milliseconds(until deadline: ContinuousClock.Instant?) -> Int32 {
        guard let deadline else { return -1 }
        let left = ContinuousClock.now.duration(to: deadline)
        guard left > .zero else { return 0 }
        return Int32(clamping: left.milliseconds + 1)
    }
}

extension Duration {
    /// Whole milliseconds, towards zero.
    var milliseconds: Int64 {
        components.seconds * 1000 + components.attoseconds / 1_000_000_000_000_000
    }
}
