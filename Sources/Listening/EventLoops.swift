import Glibc
package import NIOCore
import NIOPosix

/// The threads that do all network I/O of the process.
package struct EventLoops: Sendable {
    package let group: any EventLoopGroup

    /// Half of the processors, at least one. The other half verifies and runs PostgreSQL.
    package static var recommendedCount: Int {
        max(1, sysconf(Int32(_SC_NPROCESSORS_ONLN)) / 2)
    }

    package static func start(count: Int = recommendedCount) -> EventLoops {
        EventLoops(group: MultiThreadedEventLoopGroup(numberOfThreads: max(1, count)))
    }

    /// Runs tasks on one of the event loops. Tasks that send and receive there need not change threads then; they must not block,
    /// because the loop serves other connections too.
    package func executor() -> any TaskExecutor { Self.executor(on: group.next()) }

    /// Runs tasks on `loop`, as ``executor()`` does.
    package static func executor(on loop: any EventLoop) -> any TaskExecutor { EventLoopTaskExecutor(loop) }

    /// Returns once each thread has run a task: never, if one is blocked.
    package func respond() async {
        for loop in group.makeIterator() {
            // Fails only if the loop has ended.
            try? await loop.submit {}.get()
        }
    }
}

private final class EventLoopTaskExecutor: TaskExecutor {
    private let loop: any EventLoop

    init(_ loop: any EventLoop) {
        self.loop = loop
    }

    func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        loop.execute { job.runSynchronously(on: self.asUnownedTaskExecutor()) }
    }
}

/// The number of files and sockets that this process may open.
package enum OpenFileLimit {
    /// Descriptors for the database, the log, the spool and the listening sockets. It is better to refuse connections than
    /// to run out: libdispatch ends the process if it cannot read its own threads in `/proc`.
    static let reserve = 128

    static let leastConnections = 16

    /// The connections of a server with few clients, such as the operations endpoint: a sixteenth of all, but under a low
    /// limit enough for probes and scrapes.
    package static var fewConnections: Int {
        // A limit that is too low for this is too low for the notification endpoint, which reports it.
        let allowed = (try? raise()) ?? 0
        return min(256, max(32, allowed / 16))
    }

    /// Raises the soft limit to the hard limit, and returns the number of connections that it allows to all servers together.
    ///
    /// - Throws: `tooFewOpenFiles`.
    package static func raise() throws(ServerError) -> Int {
        var limit = rlimit()
        let resource = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
        guard getrlimit(resource, &limit) == 0 else { return Int.max }
        var raised = limit
        raised.rlim_cur = limit.rlim_max
        if setrlimit(resource, &raised) == 0 {
            limit = raised
        }
        let allowed = Int(clamping: limit.rlim_cur)
        guard allowed >= reserve + leastConnections else {
            throw ServerError(
                .tooFewOpenFiles,
                "only \(allowed) files may be open, which is too few: allow 1024 or more with ulimit -n or "
                    + "LimitNOFILE= of the service"
            )
        }
        return allowed - reserve
    }
}
