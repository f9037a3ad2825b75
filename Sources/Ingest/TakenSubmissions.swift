/// The submissions that the writer works on. No I/O.
///
/// PostgreSQL may delay the writer for longer than a request can wait. A submission can therefore be answered early, from
/// the spool, while the writer works on it. The writer's answer to it is dropped.
struct TakenSubmissions {
    /// The state of a submission.
    private enum Progress {
        case open
        /// Answered early.
        case answered
        /// The writer finished it.
        case finished
    }

    /// Submissions that were taken together. Their numbers are consecutive.
    private struct Batch {
        let submissions: [Submission]
        var progress: [Progress]
        var unfinished: Int

        func index(of submission: Submission) -> Int? {
            guard let first = submissions.first?.number, submission.number >= first else { return nil }
            let offset = submission.number - first
            return offset < UInt64(submissions.count) ? Int(offset) : nil
        }
    }

    private var batches: [Batch] = []

    /// The writer took submissions with consecutive numbers.
    mutating func taken(_ submissions: [Submission]) {
        guard !submissions.isEmpty else { return }
        batches.append(
            Batch(
                submissions: submissions,
                progress: Array(repeating: .open, count: submissions.count),
                unfinished: submissions.count
            )
        )
    }

    /// The writer finished a submission.
    ///
    /// - Returns: whether it has no answer yet; nil if the writer finished it before.
    mutating func finished(_ submission: Submission) -> Bool? {
        guard let (place, index) = find(submission) else { return nil }
        let before = batches[place].progress[index]
        guard before != .finished else { return nil }
        batches[place].progress[index] = .finished
        batches[place].unfinished -= 1
        if batches[place].unfinished == 0 { batches.remove(at: place) }
        return before == .open
    }

    /// A submission is answered while the writer works on it.
    ///
    /// - Returns: whether it had no answer yet.
    mutating func answeredEarly(_ submission: Submission) -> Bool {
        guard let (place, index) = find(submission), batches[place].progress[index] == .open else { return false }
        batches[place].progress[index] = .answered
        return true
    }

    /// The submissions up to a number that have no answer.
    func open(upTo number: UInt64) -> [Submission] {
        batches.flatMap { batch in
            zip(batch.submissions, batch.progress).compactMap { submission, progress in
                progress == .open && submission.number <= number ? submission : nil
            }
        }
    }

    private func find(_ submission: Submission) -> (place: Int, index: Int)? {
        for place in batches.indices {
            if let index = batches[place].index(of: submission) { return (place, index) }
        }
        return nil
    }
}
