// Command rounds runs the scenarios of test/faults, one after another and all over again, for a given time, and prints
// a table of what they have counted.
//
//	rounds [-for 10m] [-rounds 0] [-seed N] [-run REGEXP] [-json FILE] [-v] TEST-BINARY
//
// The test binary is that of test/faults (`go test -c`). Round i of a scenario has the seed N+i. Where a round fails,
// its output and the flags that repeat it are printed, the others go on, and the command ends with 1.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/test/faults/tally"
)

type options struct {
	binary   string
	duration time.Duration
	rounds   int
	seed     int64
	match    string
	rows     string
	verbose  bool
}

func main() {
	var o options
	flag.DurationVar(&o.duration, "for", 10*time.Minute, "begin no scenario after this `time`")
	flag.IntVar(&o.rounds, "rounds", 0, "end after so many rounds of each scenario; 0: only the time counts")
	flag.Int64Var(&o.seed, "seed", time.Now().Unix(), "what the random choices of the first round are made from")
	flag.StringVar(&o.match, "run", ".", "scenarios whose names match this regular `expression`")
	flag.StringVar(&o.rows, "json", "", "keep the rows of all rounds in this `file`")
	flag.BoolVar(&o.verbose, "v", false, "print what scenarios say that pass")
	flag.Parse()
	if o.binary = flag.Arg(0); flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	good, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "rounds:", err)
	}
	if err != nil || !good {
		os.Exit(1)
	}
}

// run says whether all rounds have passed. Counts of what no runtime can keep are in the table, and fail none.
func run(o options) (bool, error) {
	binary, err := filepath.Abs(o.binary)
	if err != nil {
		return false, err
	}
	o.binary = binary
	scenarios, err := o.scenarios()
	if err != nil {
		return false, err
	}
	if o.rows == "" {
		dir, err := os.MkdirTemp("", "berth-rounds-")
		if err != nil {
			return false, err
		}
		defer os.RemoveAll(dir)
		o.rows = filepath.Join(dir, "rows")
	} else if o.rows, err = filepath.Abs(o.rows); err != nil {
		return false, err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	began := time.Now()
	fmt.Printf("%d scenarios for %v, -seed %d\n", len(scenarios), o.duration, o.seed)
	for round := 0; o.rounds == 0 || round < o.rounds; round++ {
		for _, scenario := range scenarios {
			if time.Since(began) >= o.duration || len(interrupted) > 0 {
				return o.report(scenarios, time.Since(began))
			}
			if err := o.round(scenario, o.seed+int64(round)); err != nil {
				return false, err
			}
		}
	}
	return o.report(scenarios, time.Since(began))
}

// scenarios are the tests of the binary that were asked for.
func (o *options) scenarios() ([]string, error) {
	out, err := exec.Command(o.binary, "-test.list", o.match).Output()
	if err != nil {
		return nil, fmt.Errorf("list the scenarios of %s: %w", o.binary, err)
	}
	var names []string
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "Test") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no scenario that matches %q", o.binary, o.match)
	}
	return names, nil
}

// round runs a scenario once. A round that fails is counted, and no error.
func (o *options) round(scenario string, seed int64) error {
	began := time.Now()
	cmd := exec.Command(o.binary, "-test.run", "^"+scenario+"$", "-test.v", "-test.timeout", "30m")
	cmd.Env = append(os.Environ(), tally.EnvFile+"="+o.rows, fmt.Sprintf("BERTH_FAULT_SEED=%d", seed))
	// ^C ends the rounds after this one, which then leaves nothing behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	before, err := o.counted(scenario)
	if err != nil {
		return err
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run %s: %w", o.binary, err)
	}
	now, readErr := o.counted(scenario)
	if readErr != nil {
		return readErr
	}
	own := tally.Row{Scenario: scenario}
	result := "passed"
	switch {
	case err != nil:
		result = fmt.Sprintf("FAILED, again by: make faults FAULTS_FLAGS=\"-rounds 1 -seed %d -run '^%s$'\"", seed, scenario)
		own.Add(tally.Failed, 1)
	case bytes.Contains(out, []byte("\n--- SKIP: "+scenario+" ")), // or all that it consists of was
		bytes.Contains(out, []byte("\n    --- SKIP: ")) && !bytes.Contains(out, []byte("\n    --- PASS: ")):
		result = "skipped"
		own.Add(tally.Skipped, 1)
	}
	if now == before && result != "skipped" { // one that counts no rounds of its own
		own.Add(tally.Rounds, 1)
	}
	if err != nil || o.verbose {
		_, _ = os.Stdout.Write(out)
	}
	fmt.Printf("%s in %v, seed %d: %s\n", scenario, time.Since(began).Round(100*time.Millisecond), seed, result)
	return own.Append(o.rows)
}

// counted is how many rounds a scenario has counted so far.
func (o *options) counted(scenario string) (int64, error) {
	table, err := o.table(nil)
	if err != nil {
		return 0, err
	}
	return table.Row(scenario).Counts[tally.Rounds], nil
}

// table is what the rows so far add up to, with the scenarios in their order.
func (o *options) table(scenarios []string) (*tally.Table, error) {
	var table tally.Table
	for _, scenario := range scenarios {
		table.Row(scenario)
	}
	f, err := os.Open(o.rows)
	if errors.Is(err, os.ErrNotExist) {
		return &table, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return &table, table.Read(f)
}

func (o *options) report(scenarios []string, took time.Duration) (bool, error) {
	table, err := o.table(scenarios)
	if err != nil {
		return false, err
	}
	fmt.Printf("\n%v, -seed %d\n\n", took.Round(time.Second), o.seed)
	good := true
	for _, scenario := range scenarios {
		good = good && table.Row(scenario).Counts[tally.Failed] == 0
	}
	return good, table.Markdown(io.Writer(os.Stdout))
}
