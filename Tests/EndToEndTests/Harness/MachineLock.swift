import Synchronization

/// Runs tests that load the whole machine one after another, so that the deadlines of each hold.
final class MachineLock: Sendable {
    private struct State {
        var isTaken = false
        var waiting: [CheckedContinuation<Void, Never>] = []
    }

    private static let shared = MachineLock()
    private let state = Mutex(State())

    /// Runs `body` while no other `body` runs.
    static func withLock<R>(_ body: () async throws -> R) async rethrows -> R {
        await shared.lock()
        do {
            let result = try await body()
            shared.unlock()
            return result
        } catch {
            shared.unlock()
            throw error
        }
    }

    private func lock() async {
        await withCheckedContinuation { continuation in
            let isFree = state.withLock { state in
                if state.isTaken { state.waiting.append(continuation) }
                defer { state.isTaken = true }
                return !state.isTaken
            }
            if isFree { continuation.resume() }
        }
    }

    private func unlock() {
        let next = state.withLock { state -> CheckedContinuation<Void, Never>? in
            if state.waiting.isEmpty { state.isTaken = false }
            return state.waiting.isEmpty ? nil : state.waiting.removeFirst()
        }
        next?.resume()
    }
}
