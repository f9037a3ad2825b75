import Glibc

/// How many files and sockets this process may have open.
enum OpenFileLimit {
    /// What the process needs beside its connections: database, log, spool, listening sockets. Running out is worse than
    /// refusing connections: libdispatch ends the process when it can't look at its own threads in `/proc`.
    static let reserve = 128

    /// Raises the limit as far as the system lets this user go, and says how many connections fit.
    static func raise() -> Int {
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
        return max(16, Int(clamping: limit.rlim_cur) - reserve)
    }
}
