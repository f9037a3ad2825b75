import CLibPQ

/// What the server says beside the results of statements, as far as it matters.
///
/// Used by the thread of the one connection that it belongs to, as libpq calls its receiver while it is called itself.
final class Notices {
    private var hasUnconfirmedCommit = false

    /// Takes a notice. The pointer is a `PGresult` that libpq frees.
    ///
    /// A commit that waits for synchronous replication can be asked to stop, by a cancel request, by `statement_timeout`
    /// or by an administrator. It can't be undone any more, so the server reports success, and only warns that a standby
    /// may lack it. That warning has the code of all warnings and a text in the server's language; where it comes from in
    /// the server's source is the same in every version and language.
    func received(_ notice: OpaquePointer) {
        guard let function = unsafe PQresultErrorField(notice, Int32(CLIBPQ_DIAG_SOURCE_FUNCTION)) else { return }
        if unsafe String(cString: function) == "SyncRepWaitForLSN" { hasUnconfirmedCommit = true }
    }

    /// Whether there was an unconfirmed commit since this was asked last.
    func takeUnconfirmedCommit() -> Bool {
        defer { hasUnconfirmedCommit = false }
        return hasUnconfirmedCommit
    }
}
