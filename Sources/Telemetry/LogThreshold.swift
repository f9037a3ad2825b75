import Synchronization

/// The level that several logs share, which can change while they are in use.
final class LogThreshold: Sendable {
    private let position: Atomic<Int>

    init(_ level: LogLevel) {
        position = Atomic(Self.position(of: level))
    }

    /// The least level that is written.
    var level: LogLevel {
        get { LogLevel.allCases[position.load(ordering: .relaxed)] }
        set { position.store(Self.position(of: newValue), ordering: .relaxed) }
    }

    private static func position(of level: LogLevel) -> Int {
        LogLevel.allCases.firstIndex(of: level) ?? 0
    }
}
