import Synchronization
import Telemetry

/// The third task of the writer: answers from the spool what PostgreSQL delays.
///
/// A server may hang, a row may be locked, a name server may not answer. The writer continues to wait for them, but no
/// request does. A notification that is stored by the writer and from the spool has one effect.
extension NotificationWriter {
    /// Time between two checks. A submission that was there two checks ago has waited for 0.8 to 1.2 s and is overdue. That
    /// leaves 0.8 s for the disk if the answer is to come within two seconds.
    private static let interval = Duration.milliseconds(400)

    /// Works until it is cancelled. Returns if there is no spool.
    func answerOverdue() async {
        guard intake.spool != nil else { return }
        var newest = [UInt64(0), 0]
        var isFirst = true
        // A cancelled sleep ends the loop.
        while (try? await Task.sleep(for: Self.interval)) != nil {
            if !isFirst { beginWithSpool() }
            isFirst = false
            newest.append(intake.queue.lastNumber)
            await answer(upTo: newest.removeFirst())
        }
    }

    // MARK: - Private parts

    /// Opens the queue if the first connection takes too long.
    private func beginWithSpool() {
        guard !intake.queue.isServed, !intake.isClosed else { return }
        line.withLock { line in
            if line.connection == nil { resume(storingIn: storageWithoutDatabase(line)) }
        }
    }

    private func answer(upTo number: UInt64) async {
        while case let batch = intake.queue.waiting(atMost: intake.limits.batch, upTo: number), !batch.isEmpty {
            await spool(batch)
        }
        let held = intake.queue.held(upTo: number)
        guard !held.isEmpty else { return }
        await spool(held, isEarly: true)
        if line.withLock({ $0.overdueComplaint.isDue("") }) {
            intake.log.warning("PostgreSQL keeps notifications waiting; they are answered from the spool")
        }
    }
}
