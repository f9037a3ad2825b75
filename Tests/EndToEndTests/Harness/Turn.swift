import Synchronization

/// Lets one test after another have the machine that would each take all of it, so that the others' deadlines hold.
final class Turn: Sendable {
    private struct State {
        var isTaken = false
        var waiting: [CheckedContinuation<Void, Never>] = []
    }

    private static let shared = Turn()
    private let state = Mutex(State())

    /// Runs `body` when no other body runs.
    static func take<R>(_ body: () async throws -> R) async rethrows -> R {
        await shared.begin()
        do {
            let result = try await body()
            shared.end()
            return result
        } catch {
            shared.end()
            throw error
        }
    }

    private func begin() async {
        await withCheckedContinuation { continuation in
            let isFree = state.withLock { state in
                if state.isTaken { state.waiting.append(continuation) }
                defer { state.isTaken = true }
                return !state.isTaken
            }
            if isFree { continuation.resume() }
        }
    }

    private func end() {
        let next = state.withLock { state -> CheckedContinuation<Void, Never>? in
            if state.waiting.isEmpty { state.isTaken = false }
            return state.waiting.isEmpty ? nil : state.waiting.removeFirst()
        }
        next?.resume()
    }
}
