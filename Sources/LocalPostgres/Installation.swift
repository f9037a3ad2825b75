import Glibc
import Subprocess

/// Where PostgreSQL's programs are.
struct Installation {
    /// The directory that holds `initdb` and `postgres`.
    let directory: String

    /// The oldest version that is supported, and one that is far from being released.
    private static let versions = 14...40

    /// The newest installation in Debian's, Red Hat's or Homebrew's place, else the one that `pg_config` names.
    static func find() async throws(LocalPostgresError) -> Installation {
        for version in versions.reversed() {
            for directory in [
                "/usr/lib/postgresql/\(version)/bin", "/usr/pgsql-\(version)/bin",
                "/opt/homebrew/opt/postgresql@\(version)/bin",
            ] where access("\(directory)/postgres", X_OK) == 0 {
                return Installation(directory: directory)
            }
        }
        if let directory = await firstLine(of: "pg_config", ["--bindir"]), access("\(directory)/postgres", X_OK) == 0 {
            return Installation(directory: directory)
        }
        throw LocalPostgresError(
            .notInstalled,
            "PostgreSQL's server programs were not found; install the package `postgresql`, 14 or later"
        )
    }
}

/// The first line that a program prints; nil if it cannot be run, fails or prints nothing.
func firstLine(of program: String, _ arguments: [String]) async -> String? {
    // A program that is not there is an answer too.
    let result = try? await run(.name(program), arguments: Arguments(arguments), output: .string(limit: 4096))
    guard let result, result.terminationStatus.isSuccess else { return nil }
    return result.standardOutput.split(whereSeparator: \.isNewline).first.map(String.init)
}
