import Glibc
public import NIOCore
import NIOPosix

/// The threads that do all network I/O of the process.
public struct EventLoops: Sendable {
    /// For the packages that take an event loop group.
    public let group: any EventLoopGroup

    /// One on two cores, else half of the cores: the other half verifies and runs PostgreSQL.
    public static var recommendedCount: Int {
        max(1, sysconf(Int32(_SC_NPROCESSORS_ONLN)) / 2)
    }

    /// Starts the threads.
    public static func start(count: Int = recommendedCount) -> EventLoops {
        EventLoops(group: MultiThreadedEventLoopGroup(numberOfThreads: max(1, count)))
    }

    /// Ends the threads. Everything that runs on them must have ended.
    public func stop() async {
        // Fails only when it is stopped already.
        try? await group.shutdownGracefully()
    }
}
