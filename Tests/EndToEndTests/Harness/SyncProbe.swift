import Glibc
import TestSupport
import Testing

/// A library that records a program's calls of fsync(2), and can make them fail as a failing disk would. It is compiled for each
/// test, and loaded before the C library.
struct SyncProbe {
    /// A kind of file whose fsync can fail.
    enum Kind: String, CaseIterable, Sendable {
        case file, directory
    }

    /// The C compiler of Swift, or the system's; nil if there is none.
    static let compiler: String? = {
        let path = getenv("PATH").map { String(cString: $0) } ?? ""
        let candidates = path.split(separator: ":").map { "\($0)/clang" } + ["/usr/bin/cc"]
        return candidates.first { access($0, X_OK) == 0 }
    }()

    private let directory: TemporaryDirectory

    /// Compiles the library in a directory, which must exist for as long as the program runs.
    init(in directory: TemporaryDirectory) async throws {
        self.directory = directory
        let (source, library) = (try directory.write("probe.c", Self.source), directory.file("probe.so"))
        let compiler = try #require(Self.compiler)
        let run = try await ChildProcess.run([compiler, "-shared", "-fPIC", "-o", library, source])
        try #require(run.isSuccess, "\(run.output)")
    }

    /// Executes the rest of the command line with the library.
    var command: [String] {
        [
            "/usr/bin/env", "LD_PRELOAD=\(directory.file("probe.so"))", "SYNC_LOG=\(directory.file("syncs"))",
            "SYNC_FAULT=\(directory.file("fault"))",
        ]
    }

    /// The calls that succeeded, in order: `fsync PATH` and `rename NAME`, with the file's new name.
    var calls: [String] {
        get throws {
            String(decoding: try directory.content("syncs"), as: UTF8.self).split(separator: "\n").map(String.init)
        }
    }

    /// From now on, fsync fails with EIO for this kind of file.
    func fail(_ kind: Kind) throws {
        _ = try directory.write("fault.\(kind)", "")
    }

    /// Ends ``fail(_:)``.
    func succeed(_ kind: Kind) throws {
        try #require(unlink(directory.file("fault.\(kind)")) == 0)
    }

    private static let source = #"""
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <errno.h>
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/stat.h>
        #include <unistd.h>

        static void record(const char *call, const char *path) {
            char line[5000];
            int size = snprintf(line, sizeof line, "%s %s\n", call, path);
            int log = open(getenv("SYNC_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
            if (log < 0 || write(log, line, size) != size) abort();
            close(log);
        }

        int fsync(int file) {
            struct stat status;
            char path[4096], link[64], fault[4096];
            if (fstat(file, &status) != 0) return -1;
            snprintf(link, sizeof link, "/proc/self/fd/%d", file);
            ssize_t length = readlink(link, path, sizeof path - 1);
            path[length < 0 ? 0 : length] = 0;
            const char *kind = S_ISDIR(status.st_mode) ? "directory" : "file";
            snprintf(fault, sizeof fault, "%s.%s", getenv("SYNC_FAULT"), kind);
            if (access(fault, F_OK) == 0) {
                errno = EIO;
                return -1;
            }
            int (*next)(int) = dlsym(RTLD_NEXT, "fsync");
            if (next(file) != 0) return -1;
            record("fsync", path);
            return 0;
        }

        int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
            int (*next)(int, const char *, int, const char *, unsigned) = dlsym(RTLD_NEXT, "renameat2");
            int result = next(from, old, to, new, flags);
            if (result == 0) record("rename", new);
            return result;
        }
        """#
}
