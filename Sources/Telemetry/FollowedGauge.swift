import Synchronization

/// A number that is asked for at each scrape, because whoever knows it can't tell of every change.
package final class FollowedGauge: Sendable {
    private let source = Mutex<@Sendable () -> Int>({ 0 })

    /// The number at present; 0 as long as nothing is followed.
    package var value: Int {
        source.withLock { $0 }()
    }

    /// Asks `source` from here on, on any thread.
    package func follow(_ source: @escaping @Sendable () -> Int) {
        self.source.withLock { $0 = source }
    }
}
