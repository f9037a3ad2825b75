import Glibc
import Subprocess

/// The directory of PostgreSQL's programs.
enum Installation {
    /// From the oldest supported version to one that will not be released for years.
    private static let versions = 14...40

    /// The directory that `POSTGRES_BIN` names; else the newest installation in the directories of Debian, Red Hat or Homebrew,
    /// else the one that `pg_config` names.
    static func find() async throws(LocalPostgresError) -> String {
        if let directory = getenv("POSTGRES_BIN").map({ String(cString: $0) }), !directory.isEmpty {
            guard access("\(directory)/postgres", X_OK) == 0 else {
                throw LocalPostgresError(
                    .notInstalled,
                    "POSTGRES_BIN names \(directory), which has no program `postgres`"
                )
            }
            return directory
        }
        for version in versions.reversed() {
            for directory in [
                "/usr/lib/postgresql/\(version)/bin", "/usr/pgsql-\(version)/bin",
                "/opt/homebrew/opt/postgresql@\(version)/bin",
            ] where access("\(directory)/postgres", X_OK) == 0 {
                return directory
            }
        }
        if let directory = await firstLine(of: "pg_config", ["--bindir"]), access("\(directory)/postgres", X_OK) == 0 {
            return directory
        }
        throw LocalPostgresError(
            .notInstalled,
            "PostgreSQL's server programs were not found; install the package `postgresql`, 14 or later"
        )
    }
}

/// The first line that a program prints; nil if it cannot be run, fails or prints nothing.
func firstLine(of program: String, _ arguments: [String]) async -> String? {
    // A program that does not exist prints nothing.
    let result = try? await run(.name(program), arguments: Arguments(arguments), output: .string(limit: 4096))
    guard let result, result.terminationStatus.isSuccess else { return nil }
    return result.standardOutput.split(whereSeparator: \.isNewline).first.map(String.init)
}

/// The user for the server if this process runs as root, because PostgreSQL refuses to run as root.
struct ServerUser: Sendable {
    let userID: UInt32
    let groupID: UInt32

    /// `postgres`, else `nobody`; nil if this process does not run as root.
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
    /// Uses `setpriv` of util-linux instead of the platform options of Subprocess, which change the user between fork and
    /// exec, where glibc waits for threads that the child does not have.
    static func shell(_ user: ServerUser?, _ script: String, _ parameters: [String]) -> [String] {
        let shell = ["sh", "-c", script, "supervisor"] + parameters
        guard let user else { return shell }
        return ["setpriv", "--reuid=\(user.userID)", "--regid=\(user.groupID)", "--clear-groups", "--"] + shell
    }
}
