import Glibc

/// How many files and sockets this process may have open.
enum OpenFileLimit {
    /// What the process needs beside its connections: database, log, spool, listening sockets. Running out is worse than
    /// refusing connections: libdispatch ends the process when it can't look at its own threads in `/proc`.
    static let reserve = 128

    /// Fewer connections than these are no service.
    static let leastConnections = 16

    /// Raises the limit as far as the system lets this user go, and says how many connections fit.
    ///
    /// - Throws: `tooFewOpenFiles`.
    static func raise() throws(ServerError) -> Int {
        var limit = rlimit()
        let resource = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
        guard getrlimit(resource, &limit) == 0 else { return Int.max }
        if limit.rlim_cur < limit.rlim_max {
            var raised = limit
            raised.rlim_cur = limit.rlim_max
            if setrlimit(resource, &raised) == 0 {
                limit = raised
            }
        }
        let allowed = Int(clamping: limit.rlim_cur)
        guard allowed >= reserve + leastConnections else {
            throw ServerError(
                .tooFewOpenFiles,
                "only \(allowed) files may be open, which is too few to work with: allow 1024 or more, with ulimit -n or "
                    + "LimitNOFILE= of the service"
            )
        }
        return allowed - reserve
    }
}
