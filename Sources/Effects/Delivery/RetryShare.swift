/// Limits retries to a quarter of the claimed deliveries over several claims, so that fresh changes never wait behind retries.
///
/// `siwa.claim_deliveries` takes due retries first. With one request at a time, or with a rate, most claims are of one
/// delivery, and would take no fresh change while retries are due.
struct RetryShare: Sendable {
    /// The fresh deliveries to claim before the next retry.
    private var owed = 0
    /// False if the last claim found fewer deliveries than it asked for: nothing fresh waits, and retries may take all places.
    private var isShared = true

    /// The most retries in the next claim.
    func most(of capacity: Int) -> Int {
        guard isShared else { return capacity }
        return owed > 0 ? 0 : max(1, capacity / 4)
    }

    /// A claim of up to `capacity` deliveries found `count`, of which `retries` were attempted before.
    mutating func claimed(_ count: Int, retries: Int, of capacity: Int) {
        isShared = count >= capacity
        owed = isShared ? max(0, owed + 4 * retries - count) : 0
    }
}
