import Glibc

/// The full size of tests that take minutes, with `SIWAD_FAULTS=long` in the environment.
package enum LongVariants {
    package static let areWanted = getenv("SIWAD_FAULTS").map { String(cString: $0) } == "long"
}
