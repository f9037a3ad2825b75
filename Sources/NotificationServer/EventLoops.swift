import Glibc
package import NIOCore
import NIOPosix

/// The threads that do all network I/O of the process.
package struct EventLoops: Sendable {
    /// For the packages that take an event loop group.
    package let group: any EventLoopGroup

    /// One on two cores, else half of the cores: the other half verifies and runs PostgreSQL.
    package static var recommendedCount: Int {
        max(1, sysconf(Int32(_SC_NPROCESSORS_ONLN)) / 2)
    }

    /// Starts the threads.
    package static func start(count: Int = recommendedCount) -> EventLoops {
        EventLoops(group: MultiThreadedEventLoopGroup(numberOfThreads: max(1, count)))
    }

    /// Ends the threads. Everything that runs on them must have ended.
    package func stop() async {
        // Fails only when it is stopped already.
        try? await group.shutdownGracefully()
    }
}
