import Glibc
import Subprocess

/// The user that the server runs as when this process runs as root.
struct ServerUser: Sendable {
    let userID: UInt32
    let groupID: UInt32

    /// The user `postgres`, else `nobody`; nil when this process is not root and the server runs as its user.
    static func ifNeeded() async throws(LocalPostgresError) -> ServerUser? {
        guard geteuid() == 0 else { return nil }
        for name in ["postgres", "nobody"] {
            if let user = await firstLine(of: "id", ["-u", name]).flatMap({ UInt32($0) }),
                let group = await firstLine(of: "id", ["-g", name]).flatMap({ UInt32($0) }), user != 0
            {
                return ServerUser(userID: user, groupID: group)
            }
        }
        throw LocalPostgresError(
            .notStarted,
            "PostgreSQL does not run as root, and there is no user `postgres`; install `postgresql`"
        )
    }

    /// The command that runs a shell script as this user.
    ///
    /// By `setpriv` of util-linux, not by the platform options of Subprocess: those change identity between fork and
    /// exec, where glibc waits for threads that the child does not have.
    static func shell(_ user: ServerUser?, _ script: String, _ parameters: [String]) -> [String] {
        let shell = ["sh", "-c", script, "supervisor"] + parameters
        guard let user else { return shell }
        return ["setpriv", "--reuid=\(user.userID)", "--regid=\(user.groupID)", "--clear-groups", "--"] + shell
    }
}
