package main

// expectedFailure is a spec that cannot pass here.
type expectedFailure struct {
	spec    string // a part of its name
	runtime string // the one that it is about; empty: both
	why     string
}

// expectedFailures are checked both ways: one that passes fails the run too.
var expectedFailures = []expectedFailure{}
