/// Statements of a transaction that takes up to 50 ms: committed, rolled back or prepared, with savepoints or publication.
package struct RandomTransaction: Sendable {
    package private(set) var statements = ["BEGIN"]
    /// The changes that it leaves in the history, in their order.
    package private(set) var kept: [Int] = []
    /// The number of all changes.
    package private(set) var count = 0

    /// - Parameters:
    ///   - name: the transaction's name if it is prepared.
    ///   - change: the statement that inserts a change, which the transaction numbers from 0.
    package init(using random: inout SeededGenerator, prepared name: String, _ change: (Int) -> String) {
        let end = Int.random(in: 0..<10, using: &random)
        // PostgreSQL prepares no transaction that notifies.
        let isPrepared = (2...3).contains(end)
        for _ in 0..<Int.random(in: 1...12, using: &random) {
            switch Int.random(in: 0..<12, using: &random) {
            case 0: statements += ["SAVEPOINT s", change(number()), "ROLLBACK TO s"]
            case 1: statements += ["SAVEPOINT s", change(number(isKept: true)), "RELEASE s"]
            case 2: statements += ["SELECT pg_sleep(\(Double.random(in: 0...0.05, using: &random)))"]
            case 3 where !isPrepared: statements += ["SELECT siwa.publish_changes()"]
            default: statements.append(change(number(isKept: true)))
            }
        }
        switch end {
        case 0...1: statements.append("ROLLBACK")
        case 2: prepare(name, "COMMIT")
        case 3: prepare(name, "ROLLBACK")
        default: statements.append("COMMIT")
        }
        if [0, 1, 3].contains(end) { kept = [] }
    }

    private mutating func number(isKept: Bool = false) -> Int {
        if isKept { kept.append(count) }
        count += 1
        return count - 1
    }

    private mutating func prepare(_ name: String, _ end: String) {
        statements += ["PREPARE TRANSACTION '\(name)'", "SELECT pg_sleep(0.01)", "\(end) PREPARED '\(name)'"]
    }
}
