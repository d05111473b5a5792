package main

import (
	"fmt"
	"io"
	"os"
)

func init() { commands["read"] = read }

// read FILE writes a file to stdout.
func read(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("read takes a file")
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, f)
	return err
}
