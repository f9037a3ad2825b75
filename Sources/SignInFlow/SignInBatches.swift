import AccountStore
import AppleTokens
import Basics
import JOSE
import Postgres
import Synchronization

/// What a sign-in writes at one time: its reservation, its settlement, or both if it has no code to trade.
struct SignInWrite: Sendable {
    var reservation: NewSignIn?
    var settlement: Settlement?
    var token: UnsealedToken?

    var subject: Subject? { settlement?.subject ?? reservation?.subject }
}

/// A refresh token, to be sealed for the account that gets it.
struct UnsealedToken: Sendable {
    let text: String
    let keys: SealingKeys

    func seal(for account: Int64, _ client: ClientID) throws(PostgresError) -> SealedToken {
        do throws(JOSEError) {
            let sealed = try SealedRefreshToken(account: account, client: client).seal(text, with: keys)
            return SealedToken(sealed: sealed, keyName: keys.first)
        } catch {
            throw PostgresError(.usage, "a refresh token can't be sealed: \(error)")
        }
    }
}

/// What became of a ``SignInWrite``. A nil of what was to be written: only the function for a single sign-in can decide it.
struct SignInWritten: Sendable {
    var signInID: Int64?
    var settled: SettledSignIn?
}

/// Writes the sign-ins that wait at the same time in one transaction, one transaction after another: a group commit.
///
/// Whatever fails or is left out has no effect, and can be written by itself.
final class SignInBatches: Sendable {
    private struct Waiter {
        let write: SignInWrite
        let written: CheckedContinuation<Result<SignInWritten, PostgresError>, Never>
    }

    private struct State {
        var waiting: [Waiter] = []
        var isWriting = false
    }

    private static let largest = 64

    private let pool: ConnectionPool
    private let deadline: Duration
    private let state = Mutex(State())

    /// - Parameter deadline: of each transaction.
    init(pool: ConnectionPool, deadline: Duration) {
        self.pool = pool
        self.deadline = deadline
    }

    func write(_ write: SignInWrite) async throws(PostgresError) -> SignInWritten {
        let result: Result<SignInWritten, PostgresError> = await withCheckedContinuation { continuation in
            let mustStart = state.withLock { state in
                state.waiting.append(Waiter(write: write, written: continuation))
                defer { state.isWriting = true }
                return !state.isWriting
            }
            if mustStart { Task { await writeAll() } }
        }
        return try result.get()
    }

    private func writeAll() async {
        while let batch = next() {
            do throws(PostgresError) {
                let written = try await commit(batch.map(\.write))
                for (waiter, result) in zip(batch, written) { waiter.written.resume(returning: .success(result)) }
            } catch {
                for waiter in batch { waiter.written.resume(returning: .failure(error)) }
            }
        }
    }

    /// The longest waiting ones, of different people, and with different tokens, because a code alone names no person; nil if
    /// none waits.
    private func next() -> [Waiter]? {
        state.withLock { state in
            var subjects: Set<Subject> = []
            var digests: Set<[UInt8]> = []
            var (batch, others): ([Waiter], [Waiter]) = ([], [])
            for waiter in state.waiting {
                let (subject, digest) = (waiter.write.subject, waiter.write.reservation?.presentedDigest)
                let isKnown = subject.map { subjects.contains($0) } ?? false
                guard !isKnown, digest.map({ !digests.contains($0) }) ?? true, batch.count < Self.largest else {
                    others.append(waiter)
                    continue
                }
                if let subject { subjects.insert(subject) }
                if let digest { digests.insert(digest) }
                batch.append(waiter)
            }
            state.waiting = others
            state.isWriting = !batch.isEmpty
            return batch.isEmpty ? nil : batch
        }
    }

    private func commit(_ batch: [SignInWrite]) async throws(PostgresError) -> [SignInWritten] {
        try await pool.transaction(deadline: deadline) { transaction throws(PostgresError) in
            var written = [SignInWritten](repeating: SignInWritten(), count: batch.count)
            try SignIns.beginBatch(in: transaction)
            let reservations = batch.enumerated().compactMap { index, write in
                write.settlement == nil ? write.reservation.map { (index, $0) } : nil
            }
            if !reservations.isEmpty {
                let ids = try SignIns.reserve(reservations.map(\.1), in: transaction)
                for ((index, _), id) in zip(reservations, ids) { written[index].signInID = id }
            }
            let settlements = batch.enumerated().compactMap { index, write in
                write.settlement.flatMap { $0.isUsual ? (index, $0) : nil }
            }
            guard !settlements.isEmpty else { return written }
            let settled = try SignIns.settle(
                settlements.map(\.1),
                unreserved: settlements.map { batch[$0.0].reservation },
                in: transaction
            )
            var tokens: [(token: SealedToken, signIn: SettledSignIn)] = []
            for ((index, _), signIn) in zip(settlements, settled) {
                guard let signIn else { continue }
                written[index].settled = signIn
                if let token = batch[index].token {
                    tokens.append((try token.seal(for: signIn.accountID, signIn.client), signIn))
                }
            }
            if !tokens.isEmpty { try RefreshTokens.store(tokens, in: transaction) }
            return written
        }
    }
}
